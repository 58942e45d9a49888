package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	rawColumn   = txn.Column{Family: "contents", Qualifier: "raw"}
	dirtyColumn = txn.Column{Family: "index", Qualifier: "dirty"}
)

// observe fills a table with what observers leave, in the past of fixture.past:
//
//	d1  two changes; parser has seen none of them, linker the first
//	d2  seen by both, and not cleared away
//	d3  parser has failed three times, and is not to be tried again for long
//	d4  given up by parser, pending for linker
//	d5  given up by parser and cleared
//	d6  one change, pending for both, and the lock of a dead client
//	w1  a weak notification
//
// parser and linker observe contents:raw, indexer index:dirty, weakly. A client
// that is alive runs linker, one that died runs parser.
func (f *fixture) observe(ctx context.Context) error {
	if err := admin.InitTable(ctx, f.admin, f.bt, "", admin.TableSpec{Name: "documents", Families: []string{"contents", "index"}}); err != nil {
		return err
	}
	c, err := f.client(ctx, txn.Config{Oracle: &f.past, SyncSecondaries: true, TokenTTL: -1})
	if err != nil {
		return err
	}
	for _, o := range []struct {
		column txn.Column
		id     string
		weak   bool
	}{{rawColumn, "parser", false}, {rawColumn, "linker", false}, {dirtyColumn, "indexer", true}} {
		if err := changes.RegisterObserver(ctx, c, "documents", o.column, o.id, o.weak); err != nil {
			return err
		}
	}
	o := observing{f, c}
	for _, step := range []func(context.Context) error{
		o.change("d1", "1"), o.acknowledge("d1", "linker"), o.change("d1", "2"),
		o.change("d2", "1"), o.acknowledge("d2", "parser"), o.acknowledge("d2", "linker"),
		o.change("d3", "1"), o.acknowledge("d3", "linker"), o.fail("d3"),
		o.change("d4", "1"), o.giveUp("d4", false),
		o.change("d5", "1"), o.acknowledge("d5", "linker"), o.giveUp("d5", true),
		o.change("d6", "1"),
		func(ctx context.Context) error {
			return f.leave(ctx, "STUCK", txntest.StepCommit, txn.Config{LockTTL: shortTTL, TokenTTL: -1}, "documents/d6/contents:raw", "documents/d6/index:other")
		},
		func(ctx context.Context) error {
			return changes.Notify(ctx, c, txn.Cell{Table: "documents", Row: "w1", Family: "index", Qualifier: "dirty"})
		},
		func(ctx context.Context) error { return f.announce(ctx, nil, longTTL, "linker") },
		func(ctx context.Context) error { return f.announce(ctx, &f.past, shortTTL, "parser") },
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// observing makes the steps of observe.
type observing struct {
	f *fixture
	c *txn.Client
}

func (o observing) cell(row string) txn.Cell {
	return txn.Cell{Table: "documents", Row: row, Family: rawColumn.Family, Qualifier: rawColumn.Qualifier}
}

func (o observing) change(row, value string) func(context.Context) error {
	return func(ctx context.Context) error {
		ts, err := o.c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			put(tx, o.cell(row).String(), value)
			return nil
		})
		o.f.start[row] = ts
		return err
	}
}

func (o observing) acknowledge(row, observer string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := o.c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			seen, err := changes.Observe(ctx, tx, o.cell(row))
			if err == nil {
				changes.Acknowledge(tx, seen, observer)
			}
			return err
		})
		return err
	}
}

// fail leaves a failure of parser.
func (o observing) fail(row string) func(context.Context) error {
	return func(ctx context.Context) error {
		ts := o.f.start[row]
		return changes.SetFailure(ctx, o.c, o.cell(row), "parser", format.Failure{
			ChangeTS: ts, Attempts: 3, NotBefore: tso.FromTime(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)),
			FirstTS: ts + 1_000_000, LastTS: ts + 2_000_000, Error: "no \x1b[31mparser",
		})
	}
}

// giveUp leaves a dead letter of parser, as a worker does.
func (o observing) giveUp(row string, clear bool) func(context.Context) error {
	return func(ctx context.Context) error {
		ts := o.f.start[row]
		err := changes.Park(ctx, o.c, changes.DeadLetter{Cell: o.cell(row), Observer: "parser", ChangeTS: ts, Attempts: 10, FirstTS: ts + 1, ParkedTS: ts + 9_000_000, Error: "boom at " + row})
		switch {
		case err != nil:
			return err
		case clear:
			now, err := o.c.Timestamp(ctx)
			if err != nil {
				return err
			}
			return changes.ClearNotifications(ctx, o.c, changes.Cleared{Cell: o.cell(row), UpTo: now})
		}
		return changes.SetFailure(ctx, o.c, o.cell(row), "parser", format.Failure{ChangeTS: ts, Attempts: 10, NotBefore: format.Never, FirstTS: ts + 1, LastTS: ts + 8_000_000, Error: "boom at " + row})
	}
}

// announce makes a client that runs an observer, with a token of its oracle's
// time. It dies at once: one that lived would renew its token.
func (f *fixture) announce(ctx context.Context, oracle *past, ttl time.Duration, observer string) error {
	cfg := txn.Config{TokenTTL: ttl}
	if oracle != nil {
		cfg.Oracle = oracle
	}
	faults := txntest.NewFaults(f.t)
	c, err := f.client(ctx, cfg, faults.DialOptions()...)
	if err != nil {
		return err
	}
	if err := changes.Announce(ctx, c, []string{observer}); err != nil {
		return err
	}
	faults.Kill()
	return nil
}

// work runs all observers in this process until nothing is left to do.
func work(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Check(runObservers(ts.Value("fixture").(*fixture)))
}

func runObservers(f *fixture) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := f.client(ctx, txn.Config{})
	if err != nil {
		return err
	}
	w, err := notify.NewWorker(c, notify.Config{Finder: &notify.Scanner{MinInterval: time.Millisecond, MaxInterval: 10 * time.Millisecond}})
	if err != nil {
		return err
	}
	nothing := notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })
	raw := txn.Column{Family: "contents", Qualifier: "raw"}
	dirty := txn.Column{Family: "index", Qualifier: "dirty"}
	if err := errors.Join(w.Handle("parser", "documents", raw, nothing), w.Handle("linker", "documents", raw, nothing), w.Handle("indexer", "documents", dirty, nothing, notify.Weak())); err != nil {
		return err
	}
	runs, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(runs) }()
	_, err = notify.Wait(ctx, c, notify.WaitConfig{})
	stop()
	return errors.Join(err, <-ended)
}

// TestNotify runs the scripts of testdata/notify against what fixture.observe
// leaves.
func TestNotify(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/notify", (*fixture).observe, map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits, "dump": dumpTo, "work": work})
}
