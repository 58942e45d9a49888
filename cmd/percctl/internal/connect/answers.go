package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

// patience is how long requests may fail before the first answer; refusals is how many may
// if nothing listens at the address. Bigtable's client would send them again until its
// deadline, and return only that the deadline has passed.
const (
	patience = 3 * time.Second
	refusals = 2
)

// answers watches the requests of a command. If Bigtable cannot be reached, it ends the
// command with the cause.
type answers struct {
	stop func(error)

	mu     sync.Mutex
	any    bool // there was an answer
	failed int
	since  time.Time
	last   error
}

// Answered runs a command on what Open and OpenMetadata connect to. It ends the command if
// Bigtable cannot be reached, and says in an error what was asked, where, and what to do.
func (f *Flags) Answered(ctx context.Context, run func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f.answers = &answers{stop: stop}
	err := run(ctx)
	if err == nil {
		return nil
	}
	return f.explain(ctx, err)
}

// knock connects to an emulator once: its connection is not ours to watch.
func (a *answers) knock(ctx context.Context, emulator string) error {
	_, host, scheme := strings.Cut(emulator, "://")
	if !scheme {
		host = emulator
	}
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", host)
	if err != nil {
		a.stop(&unreachableError{err})
		return err
	}
	return conn.Close()
}

// TagRPC implements stats.Handler, as the other methods do.
func (a *answers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn does nothing.
func (a *answers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (a *answers) HandleConn(context.Context, stats.ConnStats) {}

// HandleRPC looks at how requests end.
func (a *answers) HandleRPC(_ context.Context, s stats.RPCStats) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch s := s.(type) {
	case *stats.InPayload:
		a.any = true
	case *stats.End:
		switch status.Code(s.Error) {
		case codes.Unavailable:
		case codes.OK, codes.Canceled, codes.DeadlineExceeded:
			return // gRPC also reports a stream as OK that ended before its first message was sent
		default:
			a.any = true
		}
		if a.any {
			return
		}
		if a.failed++; a.failed == 1 {
			a.since = time.Now()
		}
		a.last = s.Error
		text := s.Error.Error()
		nobody := strings.Contains(text, "connection refused") || strings.Contains(text, "no such host") // there is no service
		if nobody && a.failed >= refusals || time.Since(a.since) > patience {
			a.stop(&unreachableError{s.Error})
		}
	}
}

// lastFailure is why the last request failed, if there was no answer at all.
func (a *answers) lastFailure() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.any {
		return nil
	}
	return a.last
}

type unreachableError struct{ err error }

func (e *unreachableError) Error() string {
	text := reason(e.err)
	text = strings.TrimRight(text[strings.LastIndex(text, ": ")+1:], `" `)
	return strings.TrimSpace(text)
}

// explain words an error of the connection.
func (f *Flags) explain(ctx context.Context, err error) error {
	var nowhere *unreachableError
	last := f.answers.lastFailure()
	if !errors.As(context.Cause(ctx), &nowhere) && last != nil && (errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded || status.Code(err) == codes.Unavailable) {
		nowhere = &unreachableError{last}
	}
	var coded *cli.Error
	switch {
	case nowhere != nil:
		advice := "check the network, and the endpoint that percctl config view shows"
		if f.Emulator != "" {
			advice = "start the emulator, or unset BIGTABLE_EMULATOR_HOST for Cloud Bigtable"
		}
		return &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("%s, %v: %w; %s", f.address(), f, nowhere, advice)}
	case errors.As(err, &coded):
		return err
	case status.Code(err) == codes.Unauthenticated, status.Code(err) == codes.PermissionDenied:
		return fmt.Errorf("%s, %v: %w", f.address(), f, err) // cli says what to do
	}
	return err
}

// reason is the service's text, without what we were doing.
func reason(err error) string {
	var of interface{ GRPCStatus() *status.Status }
	if errors.As(err, &of) {
		return of.GRPCStatus().Message()
	}
	return err.Error()
}

// address is where the data service is.
func (f *Flags) address() string {
	switch {
	case f.Emulator != "":
		return "the emulator at " + f.Emulator
	case f.endpoint != "":
		return "Bigtable at " + f.endpoint
	}
	return "Bigtable at bigtable.googleapis.com:443"
}
