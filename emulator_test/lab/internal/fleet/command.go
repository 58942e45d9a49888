// Package fleet is lab fleet: a deployment with telemetry, in which everything that
// can happen does, again and again. It is there to be looked at, by a person with a
// dashboard or by a test.
//
// The coordinator (command.go) starts servers of timestamps (oracles.go) and workers
// (processes.go), which run the observers of docs/examples/index and one that fails.
// Meanwhile it changes documents (rounds.go), writes one cell from several places
// (visits.go), and collects garbage. In the end it compares the index with a batch
// computation and checks every table.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const (
	maxWorkers   = 64
	maxDocuments = 100_000

	failoversEvery = 8 * time.Second
	lossesEvery    = 2 * time.Second
	gcEvery        = 2 * time.Second // from the end of one run to the start of the next

	// shorterGC divides the durations of garbage collection: its fence takes two
	// seconds instead of two minutes.
	shorterGC = 60
	retention = 10 * time.Second

	// endTimeout bounds the time until the locks of killed processes can be resolved,
	// after lockTTL at the latest.
	endTimeout = 10 * lockTTL
)

type options struct {
	workers, documents int
	seed               uint64
	duration           time.Duration
	format             cli.Format
}

// NewCmd returns the fleet command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Run a deployment in which everything happens, to look at its telemetry",
		Long: `Run a deployment in which everything that can happen does, again and again, to look
at its metrics and traces. Workers run the observers of docs/examples/index.
Meanwhile documents change, and an observer fails on some of them. Workers are killed
in the middle of a run. Answers of Bigtable are lost. The leading server of timestamps
is killed or stopped. Transactions conflict over one cell. Clients die in rows that
no other client reads. Garbage is collected, with its durations divided by 60.

In the end the command compares the index with a batch computation of the same
documents, resolves all locks, runs the consistency check over all tables, and counts
the notifications that are left.

With OTEL_METRICS_EXPORTER=prometheus the coordinator serves /metrics on port 9464,
worker N on port 9464+N, and the two servers of timestamps on the next two ports.
docs/observability.md names the other variables, the dashboard and the alerts.

Exit status 4: the comparison or a check found something.`,
		Example: `  OTEL_METRICS_EXPORTER=prometheus lab fleet --duration 10m`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, s) },
	}
	f := cmd.Flags()
	f.IntVar(&o.workers, "workers", 4, "number of worker processes")
	f.IntVar(&o.documents, "documents", 200, "number of documents")
	f.DurationVar(&o.duration, "duration", time.Minute, "how long documents change and processes are killed")
	f.Uint64Var(&o.seed, "seed", 0, "choose the changes by this number (0: by chance)")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	cmd.AddCommand(newProcessCmd(s))
	return cmd
}

func (o *options) complete() error {
	switch {
	case o.workers < 1 || o.workers > maxWorkers:
		return cli.Usagef("--workers %d: it has to be between 1 and %d", o.workers, maxWorkers)
	case o.documents < 1 || o.documents > maxDocuments:
		return cli.Usagef("--documents %d: it has to be between 1 and %d", o.documents, maxDocuments)
	case o.duration <= 0:
		return cli.Usagef("--duration %v: it has to be positive", o.duration)
	}
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	return nil
}

// A summary is what -o json prints.
type summary struct {
	Seed              uint64 `json:"seed"`
	Rounds            int    `json:"rounds"`         // of changes
	WorkersKilled     int64  `json:"workers_killed"` // in the middle of a run
	LeadersKilled     int    `json:"leaders_killed"`
	LeadersStopped    int    `json:"leaders_stopped"`
	Visits            int64  `json:"visits"`        // transactions that write one cell
	VisitorsLost      int    `json:"visitors_lost"` // clients that died in rows that no other client reads
	GCRuns            int    `json:"gc_runs"`
	VersionsReclaimed int64  `json:"versions_reclaimed"`
	DeadLetters       int    `json:"dead_letters"` // of documents that are malformed on purpose
	NotificationsLeft int    `json:"notifications_left"`
	Violations        int    `json:"violations"` // found by the consistency check of all tables
	Mismatches        int    `json:"mismatches"` // against the batch computation, and wrong counts of visits
}

func (s *summary) text(w io.Writer) error {
	table := cli.NewTable(w)
	row := func(name string, n any, note string) { cli.WriteRow(table, name, fmt.Sprint(n), note) }
	row("rounds", s.Rounds, "of changes")
	row("workers killed", s.WorkersKilled, "in the middle of a run")
	row("failovers", s.LeadersKilled+s.LeadersStopped, fmt.Sprintf("of the oracle: %d leaders killed, %d stopped", s.LeadersKilled, s.LeadersStopped))
	row("visits", s.Visits, fmt.Sprintf("counted in one cell; %d visitors died on the way", s.VisitorsLost))
	row("dead letters", s.DeadLetters, "of documents that are malformed on purpose")
	row("collections", s.GCRuns, fmt.Sprintf("of garbage, %d versions reclaimed", s.VersionsReclaimed))
	row("notifications left", s.NotificationsLeft, "")
	row("violations", s.Violations, "found by the consistency check of all tables")
	row("mismatches", s.Mismatches, "against a batch computation")
	return table.Flush()
}

// A fleet is one run.
type fleet struct {
	opts    *options
	streams *cli.Streams
	at      place
	config  txn.Config
	client  *txn.Client
	oracles *oracles
	workers *workers

	mu  sync.Mutex // guards the streams and the summary's counts of collections
	sum summary
}

// tables are those of the deployment.
var tables = append(index.Tables[:len(index.Tables):len(index.Tables)], visitsTable)

func run(ctx context.Context, o *options, s *cli.Streams) error {
	if err := o.complete(); err != nil {
		return err
	}
	f := &fleet{opts: o, streams: s, sum: summary{Seed: o.seed}}
	if err := f.run(ctx); err != nil {
		return err
	}
	if err := cli.Print(s.Out, o.format, &f.sum, f.sum.text); err != nil {
		return err
	}
	if f.sum.Violations+f.sum.Mismatches+f.sum.NotificationsLeft > 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d violations, %d mismatches and %d notifications left, with --seed %d", f.sum.Violations, f.sum.Mismatches, f.sum.NotificationsLeft, o.seed)}
	}
	return nil
}

// event reports something that happened.
func (f *fleet) event(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(f.streams.Err, format+"\n", args...)
}

func (f *fleet) run(ctx context.Context) (err error) {
	emulator, err := txntest.StartEmulator("127.0.0.1:0")
	if err != nil {
		return err
	}
	defer emulator.Close()
	f.at = place{Emulator: emulator.Addr()}
	bt, ad, closeAll, err := f.at.open(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, spec := range tables {
		if err := admin.InitTable(ctx, ad, bt, "", spec); err != nil {
			return err
		}
	}
	f.oracles = &oracles{fleet: f, table: bt.OpenTable(txn.DefaultMetadataTable)}
	if err := f.oracles.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.oracles.stop()) }()
	if ports := telemetry.ChildPorts(f.opts.workers + servers); ports != "" {
		f.event("metrics for Prometheus at %s", ports)
	}
	config, closeOracle, err := f.at.clientConfig()
	if err != nil {
		return err
	}
	defer closeOracle()
	f.config = config
	if f.client, err = txn.NewClient(ctx, bt, config); err != nil {
		return err
	}
	defer func() { _ = f.client.Close(context.WithoutCancel(ctx)) }() // its commits are awaited
	if err := f.register(ctx); err != nil {
		return err
	}
	if err := f.whileWorking(ctx); err != nil {
		return err
	}
	return f.verify(ctx)
}

// register registers the observers, so that the first documents notify them.
func (f *fleet) register(ctx context.Context) error {
	if err := index.Register(ctx, f.client); err != nil {
		return err
	}
	c := criticColumn()
	return changes.RegisterObserver(ctx, f.client, c.Table, txn.Column{Family: c.Family, Qualifier: c.Qualifier}, criticID, false)
}

// whileWorking starts the workers, and stops them once everything has happened and
// every change is indexed.
func (f *fleet) whileWorking(ctx context.Context) error {
	f.workers = &workers{fleet: f}
	g, gctx := errgroup.WithContext(ctx)
	wctx, stop := context.WithCancel(gctx)
	for slot := range f.opts.workers {
		g.Go(func() error { return f.workers.keep(wctx, slot+1) })
	}
	g.Go(func() error {
		defer stop()
		return f.happen(gctx)
	})
	if err := g.Wait(); err != nil {
		return err
	}
	f.sum.WorkersKilled = f.workers.killed.Load()
	return ctx.Err()
}

// happen has everything happen for as long as --duration says.
func (f *fleet) happen(ctx context.Context) error {
	docs := newDocuments(f.opts)
	if err := f.load(ctx, docs.all()); err != nil {
		return err
	}
	if err := f.compare(ctx, docs); err != nil {
		return err
	}
	f.event("%d documents are indexed; seed %d", f.opts.documents, f.opts.seed)
	v := &visits{client: f.client}
	side, stop := context.WithCancel(ctx)
	defer stop()
	g, side := errgroup.WithContext(side)
	for i := range visitors {
		g.Go(func() error { return v.visit(side, i) })
	}
	g.Go(func() error {
		return every(side, lossesEvery, func(i int) error {
			err := v.lose(side, f.at, f.config, []txntest.Step{txntest.StepCommit, txntest.StepSecondaries}[i%2])
			if err != nil && side.Err() == nil {
				return fmt.Errorf("losing a visitor: %w", err)
			}
			return nil
		})
	})
	g.Go(func() error {
		return every(side, failoversEvery, func(i int) error { return f.oracles.failOver(side, i%2 == 0) })
	})
	g.Go(func() error { return every(side, gcEvery, func(int) error { return f.collect(side) }) })
	g.Go(func() error {
		defer stop()
		return f.rounds(side, docs)
	})
	err := g.Wait()
	if ctx.Err() != nil || err != nil {
		return err
	}
	f.sum.LeadersKilled, f.sum.LeadersStopped = f.oracles.killed, f.oracles.stopped
	f.sum.Visits, f.sum.VisitorsLost = v.committed.Load(), v.lost
	if err := f.compare(ctx, docs); err != nil {
		return err
	}
	off, err := v.check(ctx)
	f.sum.Mismatches += off
	return err
}

// every calls f with 0, 1, 2 and so on, with pauses, until ctx ends.
func every(ctx context.Context, pause time.Duration, f func(i int) error) error {
	for i := 0; ; i++ {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if err := f(i); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// collect runs garbage collection once. The next run deals with what fails it:
// live transactions, or missing timestamps.
func (f *fleet) collect(ctx context.Context) error {
	report, err := gc.Run(ctx, f.client, gc.Config{Retention: retention, LockWait: time.Second})
	if report != nil {
		f.sum.VersionsReclaimed += report.Total.Versions
	}
	switch {
	case err == nil:
		f.sum.GCRuns++
	case ctx.Err() == nil:
		f.event("garbage collection: %v", err)
	}
	return nil
}

// verify resolves the locks of killed processes, runs the consistency check, and
// counts what is left.
func (f *fleet) verify(ctx context.Context) error {
	if err := f.resolveAll(ctx); err != nil {
		return err
	}
	for _, t := range tables {
		for v, err := range admin.Check(ctx, f.client, t.Name, nil) {
			if err != nil {
				return err
			}
			f.sum.Violations++
			f.event("violation: %s", v)
		}
		for _, err := range changes.Notifications(ctx, f.client, t.Name, nil) {
			if err != nil {
				return err
			}
			f.sum.NotificationsLeft++
		}
	}
	for l, err := range changes.DeadLetters(ctx, f.client) {
		if err != nil {
			return err
		}
		if l.Observer == criticID {
			f.sum.DeadLetters++
			continue
		}
		f.sum.Mismatches++
		f.event("dead letter: %s of %s: %s", l.Cell, l.Observer, l.Error)
	}
	return nil
}

// resolveAll resolves every lock. Those of processes that were killed a moment ago
// have to expire first.
func (f *fleet) resolveAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endTimeout, errors.New("locks are left that cannot be resolved"))
	defer cancel()
	for {
		left := 0
		for _, t := range tables {
			for l, err := range admin.Locks(ctx, f.client, t.Name, nil) {
				if err != nil {
					return err
				}
				left++
				if _, err := admin.Resolve(ctx, f.client, l); err != nil {
					return err
				}
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(tokenTTL / 10):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
