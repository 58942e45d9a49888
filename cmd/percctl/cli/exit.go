package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes, the same for every command.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitFound       = 4 // a check found something, or work is pending
	ExitUnavailable = 5 // the service cannot be reached, or time ran out
	ExitUnsafe      = 6 // transactions are not safe on the service
	ExitLeft        = 7 // everything was done, and something is left to people
	ExitInterrupted = 130
)

// An Error is an error with the exit code it stands for.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Usagef is the error of a wrong argument or flag. The message names the flag,
// the value and what is allowed.
func Usagef(format string, args ...any) error {
	return &Error{ExitUsage, fmt.Errorf(format, args...)}
}

// exitCode returns what the process exits with. ctx is the one that signals
// end: what fails after that is an interruption.
func exitCode(ctx context.Context, err error) int {
	var coded *Error
	switch {
	case err == nil:
		return ExitOK
	case ctx.Err() != nil:
		return ExitInterrupted
	case errors.As(err, &coded):
		return coded.Code
	case errors.Is(err, context.DeadlineExceeded):
		return ExitUnavailable
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return ExitUnavailable
	}
	return ExitFailed
}

// Flags replaces names of the library's fields in a message by those of the flags that set
// them.
func Flags(text string) string { return fields.Replace(text) }

var fields = strings.NewReplacer(
	"set AdoptConfig.ClearPolicies to have it cleared", "add --clear-policies to have it cleared",
	"set BulkConfig.StartTS and CommitTS to those", "set --resume to the timestamps",
	"set BulkConfig.CommitTS to that", "set --resume to the timestamps",
	"with BulkConfig.Idle, or in a transaction", "with --idle, or without --bulk",
	"Config.Retention", "--retention", "Config.Rate", "--rate", "Config.FullEvery", "--full-every",
	", or call admin.InitTable", "", " or admin.InitTable", "", "LeaveConfig.ClientsStopped, ", "", "changes.UnregisterObserver, ", "",
	"with changes.RegisterObserver", "with percctl observer add", "Config.LockTTL", "the time to live of its locks",
	"set RepairConfig.TrustOracle", "plan again with --trust-oracle",
	"; see package index (Indexes.Keep)", "; only services that maintain it can write the column",
)

// rpcStatus is how gRPC writes a status.
var rpcStatus = regexp.MustCompile(`rpc error: code = (\w+) desc = `)

// message is the text of an error for people: the words of gRPC are not for them.
func message(err error, code int) string {
	text := Plain(Flags(err.Error()))
	text = strings.ReplaceAll(text, context.DeadlineExceeded.Error(), "timed out")
	if code == ExitInterrupted {
		text = strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
		if strings.HasPrefix(text, "interrupted") { // once is enough
			text = strings.TrimSuffix(text, ": interrupted")
		}
	}
	return text
}

// Plain replaces the words of gRPC in a message.
func Plain(text string) string {
	return rpcStatus.ReplaceAllStringFunc(text, func(s string) string {
		switch name := rpcStatus.FindStringSubmatch(s)[1]; name {
		case codes.Canceled.String(), codes.DeadlineExceeded.String(), codes.Unknown.String():
			return "" // what follows says the same, or more
		default:
			return splitWords(name) + ": "
		}
	})
}

// splitWords makes words of a name: NotFound becomes not found.
func splitWords(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// Shell is a command line for a shell that has these arguments, without "--".
func Shell(args []string) string {
	var words []string
	for _, a := range args {
		if a == "--" {
			continue
		}
		if a == "" || strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=/:.,%@+") != "" {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
