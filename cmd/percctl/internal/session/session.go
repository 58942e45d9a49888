// Package session is what the commands that work on transactional tables
// share: finding and opening them, ranges of rows, and the exit codes of the
// library's errors.
package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

// connectTimeout bounds the first request, also where --timeout does not.
const connectTimeout = 20 * time.Second

// closeTimeout bounds the end of a command: locks that its reads
// have not resolved by then are left to other clients.
const closeTimeout = 2 * time.Second

// Flags are those of every command that works on tables.
type Flags struct {
	Connect connect.Flags
	Timeout time.Duration

	// NoTimestamps is called when the oracle stops to give timestamps to a command that only
	// looks. nil: that is a warning on standard error.
	NoTimestamps func(error)
}

// Add adds the flags to a command; timeout is the default, 0 for none.
func (f *Flags) Add(cmd *cobra.Command, timeout time.Duration) {
	f.Connect.Add(cmd.Flags())
	f.Connect.AddEmbedded(cmd.Flags())
	f.Connect.Oracle.Add(cmd.Flags())
	cmd.Flags().DurationVar(&f.Timeout, "timeout", timeout, "stop after this time (0: no limit)")
}

// A Session is a connection to a deployment.
type Session struct {
	Streams  *cli.Streams
	Progress *cli.Progress
	// Where names project and instance, for messages.
	Where string
	// LeftOut are tables that AllTables left out.
	LeftOut []string
	// Unread are tables that cannot be read, which AllTables left out.
	Unread []string
	// Connect says what Bigtable and Admin are connected to.
	Connect  *connect.Flags
	Bigtable *bigtable.Client
	Admin    *bigtable.AdminClient
	// Served is the oracle in served mode; nil in direct mode.
	Served *admin.Oracle

	config txn.Config
	strict bool
	meter  *watch.Meter

	mu     sync.Mutex
	client *txn.Client
	opened map[string]bool
	all    []*txn.Client // to be closed
}

// Mode says what a command does to the tables.
type Mode int

// The modes. A command that only looks does so also at tables that
// transactions refuse, because of a garbage-collection policy for example.
const (
	Looks Mode = iota
	Changes
	Bare // no table may be transactional yet: the session has no Client
)

// Run connects, runs f within the timeout, and disconnects. Errors come back
// with their exit codes.
func (f *Flags) Run(ctx context.Context, s *cli.Streams, mode Mode, cfg txn.Config, run func(context.Context, *Session) error) error {
	return f.RunBare(ctx, s, func(ctx context.Context, sess *Session) error {
		cfg.MetadataTable = f.Connect.MetadataTable
		cfg.Admin = sess.Admin
		if cfg.Oracle == nil {
			served, err := ServedOracle(ctx, sess.Connect, sess.Bigtable)
			if err != nil {
				return err
			}
			if served != nil {
				defer served.Close()
				served.Reads, served.Warn = mode == Looks, f.NoTimestamps
				if served.Warn == nil {
					served.Warn = func(err error) {
						sess.Progress.End()
						fmt.Fprintf(s.Err, "warning: %s. Until then, this command reads the latest state that is stored, and computes ages by the clock of this machine\n", cli.Line(cli.Plain(err.Error())))
					}
				}
				cfg.Oracle, sess.Served = served, served
			}
		}
		// Other clients need not know whether it is alive: locks that it writes
		// live until their ttl.
		cfg.TokenTTL = -1
		sess.config, sess.strict = cfg, mode == Changes
		defer sess.close(ctx)
		if err := sess.connect(ctx); err != nil {
			return err
		}
		if err := run(ctx, sess); err != nil {
			return err
		}
		return sess.complete()
	})
}

// RunBare is Run for what works where no table is transactional yet: the
// session has no Client.
func (f *Flags) RunBare(ctx context.Context, s *cli.Streams, run func(context.Context, *Session) error) error {
	if f.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.Timeout, timeoutError(f.Timeout))
		defer cancel()
	}
	var warned sync.Once
	f.Connect.Oracle.Warn = func(text string) {
		warned.Do(func() { _, _ = fmt.Fprint(s.Err, text) })
	}
	return coded(f.Connect.Answered(ctx, func(ctx context.Context) error {
		meter := &watch.Meter{}
		if f.Connect.Options == nil {
			f.Connect.Options = meter.DialOptions()
		}
		bt, admin, closeAll, err := f.Connect.Open(ctx)
		if err != nil {
			return err
		}
		defer closeAll()
		sess := &Session{Streams: s, Progress: cli.NewProgress(s), Where: f.Connect.String(), Connect: &f.Connect, Bigtable: bt, Admin: admin, meter: meter, opened: map[string]bool{}}
		defer sess.Progress.End()
		return f.explainTimeout(ctx, run(ctx, sess))
	}))
}

// Ended is the error of a command that runs until its context ends.
func Ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	return context.Cause(ctx)
}

// A timeoutError says that --timeout expired.
type timeoutError time.Duration

func (e timeoutError) Error() string { return fmt.Sprintf("--timeout %v expired", time.Duration(e)) }

func (e timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// explainTimeout names --timeout in an error that came of it. A request notices
// its deadline a little before or after the context does.
func (f *Flags) explainTimeout(ctx context.Context, err error) error {
	deadline, ok := ctx.Deadline()
	if err == nil || !ok || time.Until(deadline) > 10*time.Millisecond || strings.Contains(err.Error(), timeoutError(f.Timeout).Error()) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return fmt.Errorf("%w: %w", timeoutError(f.Timeout), err)
	}
	return err
}

func (s *Session) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("the metadata table was not read within %v", connectTimeout))
	defer cancel()
	c, err := txn.NewClient(ctx, s.Connect.Tables(s.Bigtable), s.config)
	if errors.Is(err, txn.ErrNotInitialized) {
		return NotFoundf("%s has no metadata table %q: check --project, --instance and --metadata-table; percctl table init and percctl table adopt create it", s.Where, s.Connect.MetadataTable)
	}
	if err != nil {
		return err
	}
	s.client = c
	s.all = append(s.all, c)
	return nil
}

func (s *Session) close(ctx context.Context) {
	s.Progress.End()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, c := range s.all {
		_ = c.Close(ctx) // it committed nothing
	}
}

// Read is how many kB Bigtable has answered.
func (s *Session) Read() int { return int(s.meter.Used().Bytes / 1000) }

// Client returns the client to use now.
func (s *Session) Client() *txn.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.client
}

// Use opens tables before they are read, verified against their families and
// policies. Where that fails and the command only looks, it warns, and tables
// are read as their schema records describe them.
func (s *Session) Use(ctx context.Context, tables ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tables {
		if s.opened[t] {
			continue
		}
		err := s.client.CheckTable(ctx, t)
		if err != nil && !s.strict && s.config.Admin != nil && unverifiable(err) {
			fmt.Fprintf(s.Streams.Err, "warning: %s; reading the table anyway\n", cli.Line(err.Error()))
			s.config.Admin = nil
			if err := s.connect(ctx); err != nil {
				return err
			}
			err = s.client.CheckTable(ctx, t)
		}
		if err != nil {
			return s.explainTable(ctx, s.client, t, err)
		}
		s.opened[t] = true
	}
	return nil
}

// unverifiable: the table may be read, but not verified or not trusted.
func unverifiable(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return errors.Is(err, txn.ErrSchema)
}

// coded gives an error of the library the exit code that it stands for.
func coded(err error) error {
	var has *cli.Error
	var none *admin.NoTimestampsError
	switch {
	case err == nil || errors.As(err, &has):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &none):
		return &cli.Error{Code: cli.ExitUnavailable, Err: none}
	case errors.Is(err, txn.ErrNotInitialized), status.Code(err) == codes.NotFound:
		return &cli.Error{Code: cli.ExitNotFound, Err: err}
	case errors.Is(err, txn.ErrInvalid), errors.Is(err, txn.ErrLimit):
		return cli.Usagef("%w", err)
	}
	return err
}

// NotFoundf is the error of something that is not there.
func NotFoundf(format string, args ...any) error {
	return &cli.Error{Code: cli.ExitNotFound, Err: fmt.Errorf(format, args...)}
}

// Foundf is the error that exits with 4: a check found something, or work is
// left.
func Foundf(format string, args ...any) error {
	return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf(format, args...)}
}
