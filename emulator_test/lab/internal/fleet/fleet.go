package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

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

// event reports something that happened.
func (f *fleet) event(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(f.streams.Err, format+"\n", args...)
}

// start starts this program again, as the nth child of the coordinator.
func (f *fleet) start(name string, n int, sp spec) (*child.Process, error) {
	sp.place = f.at
	arg, err := json.Marshal(sp)
	if err != nil {
		return nil, err
	}
	return child.Start(context.Background(), child.Config{Name: name, Args: []string{"fleet", "process", string(arg)}, Env: telemetry.ChildEnv(n), Stderr: f.streams.Err})
}

func (f *fleet) run(ctx context.Context) (err error) {
	emulator, err := txntest.StartEmulator("127.0.0.1:0", txntest.Strict()...)
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
	f.oracles = &oracles{fleet: f, table: bt.OpenTable(format.DefaultMetadataTable)}
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
	table, column := criticColumn()
	return changes.RegisterObserver(ctx, f.client, table, column, criticID, false)
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

func (f *fleet) load(ctx context.Context, docs []index.Document) error {
	_, err := notify.Load(ctx, f.client, sequence(docs), index.Load, notify.LoadConfig{Concurrency: 8})
	return err
}

// rounds changes documents. It compares once a minute, not in each round: to wait
// until the workers have caught up is to resolve all locks, and some are to be left
// for garbage collection.
func (f *fleet) rounds(ctx context.Context, docs *documents) error {
	over, compare := time.After(f.opts.duration), time.NewTicker(compareEvery)
	defer compare.Stop()
	for {
		if err := f.load(ctx, docs.change(f.sum.Rounds)); err != nil {
			return err
		}
		f.sum.Rounds++
		select {
		case <-time.After(roundsEvery):
		case <-compare.C:
			if err := f.compare(ctx, docs); err != nil {
				return err
			}
		case <-over:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// compare waits until the workers have caught up, and compares the tables with what a
// batch computation makes of the same documents.
func (f *fleet) compare(ctx context.Context, docs *documents) error {
	asOf, err := notify.Wait(ctx, f.client, notify.WaitConfig{})
	if err != nil {
		return err
	}
	snapshot, err := f.client.Snapshot(ctx, txn.At(asOf), txn.Hold())
	if err != nil {
		return err
	}
	defer snapshot.Release()
	got, err := index.Read(ctx, snapshot)
	if err != nil {
		return err
	}
	want, err := index.Compute(sequence(docs.all()))
	if err != nil {
		return err
	}
	for _, m := range index.Compare(got, want.State) {
		f.sum.Mismatches++
		f.event("mismatch: %s", m)
	}
	return nil
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
