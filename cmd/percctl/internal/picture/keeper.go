package picture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
)

// A Keeper keeps a session open for one question after the other. A session
// that a question failed in is closed, and the next question opens another: the
// oracle may have moved. It only looks.
type Keeper struct {
	flags session.Flags
	notes *notes
	asks  chan *ask
	ended chan struct{}
	stop  context.CancelFunc

	timeout time.Duration
}

type ask struct {
	ctx  context.Context
	do   func(context.Context, *session.Session) error
	done chan error
}

// Keep starts a keeper. The flags' timeout bounds each question, with the
// opening of the session where there is none. Call Close when done.
func Keep(ctx context.Context, flags *session.Flags) (*Keeper, error) {
	if flags.Timeout < 0 {
		return nil, cli.Usagef("--timeout %v: it has to be positive, or 0 for no limit", flags.Timeout)
	}
	ctx, stop := context.WithCancel(ctx)
	k := &Keeper{flags: *flags, notes: &notes{}, asks: make(chan *ask), ended: make(chan struct{}), stop: stop, timeout: flags.Timeout}
	k.flags.Timeout, k.flags.NoTimestamps = 0, func(error) {} // pictures have the state of the oracle
	go func() {
		defer close(k.ended)
		for {
			select {
			case a := <-k.asks:
				k.session(ctx, a, flags.Timeout)
			case <-ctx.Done():
				return
			}
		}
	}()
	return k, nil
}

// Close ends the session.
func (k *Keeper) Close() {
	k.stop()
	<-k.ended
}

// Do asks a question. Questions are asked one at a time. Errors come with their
// exit codes.
func (k *Keeper) Do(ctx context.Context, do func(context.Context, *session.Session) error) error {
	a := &ask{ctx, do, make(chan error, 1)}
	select {
	case k.asks <- a:
		return <-a.done
	case <-ctx.Done():
		return ctx.Err()
	case <-k.ended:
		return context.Canceled
	}
}

// session opens a session for a question and those that come after it.
func (k *Keeper) session(ctx context.Context, a *ask, timeout time.Duration) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := func() (end func()) {
		asked := a.ctx // a is nil again when the question has its answer
		stop := context.AfterFunc(asked, func() { cancel(context.Cause(asked)) })
		if timeout == 0 {
			return func() { stop() }
		}
		timer := time.AfterFunc(timeout, func() {
			cancel(expired(timeout))
		})
		return func() { stop(); timer.Stop() }
	}
	end := begin()
	// Each has a copy of the flags: connecting sets some.
	flags := k.flags
	err := flags.Run(ctx, &cli.Streams{In: bytes.NewReader(nil), Out: io.Discard, Err: k.notes}, session.Looks, txn.Config{}, func(ctx context.Context, s *session.Session) error {
		s.Progress = cli.NewProgress(&cli.Streams{Err: io.Discard})
		for {
			if err := a.do(ctx, s); err != nil {
				return err
			}
			end()
			a.done <- nil
			a = nil
			select {
			case a = <-k.asks:
				end = begin()
			case <-ctx.Done():
				return nil
			}
		}
	})
	if a == nil {
		return
	}
	end()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	a.done <- err
}

func expired(timeout time.Duration) error {
	return &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("--timeout %v expired", timeout)}
}

// notes keeps the warnings that a session writes to its standard error.
type notes struct {
	mu    sync.Mutex
	lines []string
}

// keptNotes is how many different ones are kept.
const keptNotes = 10

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range bytes.Lines(b) {
		text := cli.Line(string(bytes.TrimSpace(line)))
		if text != "" && len(n.lines) < keptNotes && !slices.Contains(n.lines, text) {
			n.lines = append(n.lines, text)
		}
	}
	return len(b), nil
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}
