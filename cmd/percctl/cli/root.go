// Package cli is what the commands of percctl share, and those of
// emulator_test/lab: the root command, streams, output formats and exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

// A Command makes a subcommand of a program.
type Command func(*Streams) *cobra.Command

// A Program is what the root command says of itself, and the commands below it.
type Program struct {
	Name, Short, Long, Example string
	Commands                   []Command
}

// Main runs the program and returns its exit code. The context of the command
// that runs ends on the first interrupt; a second one ends the process at once.
func (p Program) Main(args []string, s *Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	s = s.safe()
	defer func() { words.Flush(s.Out); words.Flush(s.Err) }()
	root := p.Root(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code := exitCode(ctx, err)
	if err != nil {
		text := message(err, code)
		if advice := refused(err); advice != "" {
			text += "\n" + advice
		}
		printError(s.Err, cmd, args, text, code)
	}
	return code
}

// Root returns the root command with all others below it.
func (p Program) Root(s *Streams) *cobra.Command {
	s = s.safe()
	root := Group(p.Name, p.Short, p.Long)
	if p.Name == "percctl" {
		addVersionFlag(root)
	}
	root.Example = p.Example
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(flagError)
	for _, c := range p.Commands {
		root.AddCommand(c(s))
	}
	checkTopics(root)
	filtered(root, s)
	durations(root)
	return root
}

// asksJSON matches arguments that ask for JSON, of a command that may not exist.
var asksJSON = regexp.MustCompile(`\x00(-o[\x00=]?|--output[\x00=])jsonl?\x00`)

// printError prints why a command ended: as JSON where its output is JSON.
func printError(w io.Writer, cmd *cobra.Command, args []string, text string, code int) {
	f := cmd.Flag("output")
	filtered := f != nil && f.Value.String() == string(JSON) // by --jq, for example
	if filtered || asksJSON.MatchString("\x00"+strings.Join(args, "\x00")+"\x00") {
		b, err := marshalJSON(map[string]any{"command": cmd.CommandPath(), "error": text, "exit_code": code})
		if err == nil {
			fmt.Fprintf(w, "%s\n", b)
			return
		}
	}
	// It may carry stored bytes, or what the user pasted.
	for i, line := range strings.Split(text, "\n") {
		if i == 0 {
			line = cmd.CommandPath() + ": " + line
		}
		fmt.Fprintln(w, Line(line))
	}
	if code == ExitUsage {
		fmt.Fprintf(w, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
}

// NoArgs is for commands that take flags only.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usagef("unexpected argument %q: the command takes only flags", args[0])
	}
	return nil
}

// flagError words the error of a flag: its name, the value and what is allowed.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return unknownFlag(cmd, err)
	}
	f := invalid.GetFlag()
	var allowed string
	switch f.Value.Type() {
	case "int":
		allowed = "it has to be a whole number"
	case "uint64":
		allowed = "it has to be a whole number, 0 or more"
	case "duration":
		allowed = "it has to be a duration such as 90s, 5m or 2d"
	default:
		allowed = invalid.Unwrap().Error()
	}
	return Usagef("--%s %s: %s", f.Name, invalid.GetValue(), allowed)
}
