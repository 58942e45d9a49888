package notify_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestUnregistered: an unregistered observer runs no more. Every worker of the table removes
// the notifications of a column that has no observer left.
func TestUnregistered(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "old", false)
		for i := range 10 {
			put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
		}
		wantLeft(t, env.Client, 10, 0)
		// Wait would never return if it waited for this observer.
		if found, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "old"); err != nil || !found {
			t.Fatal(found, err)
		}
		if found, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "old"); err != nil || found {
			t.Error("unregistered twice:", found, err)
		}
		wait(t, env.Client)
		put(t, env.Client, input, "row0", "unobserved")
		wantLeft(t, env.Client, 10, 0)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "other", middle, observeEffect)
		start(t, w)
		pass(3 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
		if s := w.Stats(); s.Runs != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestStopWhileRegistering: a worker that stops before it has registered its observers stops
// without an error, as at any other time, and can run again.
func TestStopWhileRegistering(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{}, faults.DialOptions()...), notify.Config{})
		handle(t, w, "o", input, observeEffect)
		registers := faults.OnStep(txntest.StepSchema, txntest.Hold)
		stop := start(t, w)
		<-registers.Fired()
		if err := stop(); err != nil {
			t.Errorf("a worker that stopped while it registered returned %v", err)
		}
		start(t, w)
		pass(time.Second)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects of the worker's second run, want 1", n)
		}
	})
}

// TestUnregisteredUnderWorker: a worker that still has the observer stops
// running it once it reads the schema again.
func TestUnregisteredUnderWorker(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute, SchemaMaxAge: 30 * time.Second}), notify.Config{})
		handle(t, w, "o", input, observeEffect)
		handle(t, w, "p", input, observeEffect)
		start(t, w)
		pass(time.Second)
		put(t, env.Client, input, "row", "1")
		wait(t, env.Client)
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "o"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		put(t, env.Client, input, "row", "2")
		wait(t, env.Client)
		pass(time.Minute)
		if n := effects(t, env.Client)["row"]; n != 3 {
			t.Errorf("%d effects, want 2 of the first change and 1 of the second", n)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestRenamed: an observer under a new id is a new one. It sees changes from then
// on, and the older ones by Backfill; the old id's acknowledgments say nothing.
func TestRenamed(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		run := func(id string) *notify.Worker {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
			handle(t, w, id, input, observeEffect)
			return w
		}
		register(t, env.Client, input, "before", false)
		put(t, env.Client, input, "row", "1")
		stop := start(t, run("before"))
		wait(t, env.Client)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "before"); err != nil {
			t.Fatal(err)
		}
		w := run("after")
		start(t, w)
		pass(time.Minute)
		if s := w.Stats(); s.Runs != 0 {
			t.Errorf("%+v", s)
		}
		n, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: input.table, Column: input.Column})
		if err != nil || n != 1 {
			t.Errorf("%d cells, %v", n, err)
		}
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 2 {
			t.Errorf("%d effects", n)
		}
	})
}

// TestRunningWritersNotice: a running client notifies a new observer after its SchemaMaxAge
// at the latest. Backfill finds what it commits before that.
func TestRunningWritersNotice(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		const age = 40 * time.Second
		writer := env.NewClient(txn.Config{TokenTTL: time.Minute, SchemaMaxAge: age})
		put(t, writer, input, "before", "v")
		w := newWorker(t, env.Client, notify.Config{NoHints: true})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(time.Second)
		put(t, writer, input, "unaware", "v")
		pass(age)
		put(t, writer, input, "aware", "v")
		wait(t, env.Client)
		got := effects(t, env.Client)
		if got["aware"] != 1 || got["before"] != 0 || got["unaware"] != 0 {
			t.Errorf("effects %v", got)
		}
		var progress []int
		n, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: input.table, Column: input.Column, Rows: bigtable.PrefixRange(""), Progress: func(cells int, row string) { progress = append(progress, cells) }})
		if err != nil || n != 3 || len(progress) != 1 {
			t.Errorf("%d cells, progress %v, %v", n, progress, err)
		}
		wait(t, env.Client)
		got = effects(t, env.Client)
		for _, row := range []string{"before", "unaware", "aware"} {
			if got[row] != 1 {
				t.Errorf("row %s: %d effects", row, got[row])
			}
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestAdopted: data from before the table was adopted is a change that no
// observer has acknowledged.
func TestAdopted(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		m := bigtable.NewMutation()
		m.Set("d", "in", bigtable.Now(), []byte("plain"))
		if err := env.Bigtable.Open("docs").Apply(t.Context(), "row", m); err != nil {
			t.Fatal(err)
		}
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
			tx.Table("docs").Set(cell.Row, "d", "out", v)
			effect(tx, cell)
			return err
		})
		start(t, w)
		for range 2 { // the second time it is acknowledged
			if n, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: input.table, Column: input.Column, Rows: bigtable.RowList{"row", "none"}}); err != nil || n != 1 {
				t.Error(n, err)
			}
			wait(t, env.Client)
		}
		if n := effects(t, env.Client)["row"]; n != 1 || value(t, env.Client, output, "row") != "plain" {
			t.Errorf("%d effects, %q", n, value(t, env.Client, output, "row"))
		}
	})
}

// TestRegisteredBesideOrphan: while a worker reads the registry, because it has found a
// notification of a column without observers, an observer is registered for that column and
// a client commits a change for it. The worker removes only what is older than its answer.
func TestRegisteredBesideOrphan(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true})
		handle(t, w, "m", middle, observeNothing)
		stop := start(t, w)
		pass(time.Minute)
		registry := faults.On("registry", func(c txntest.Call) bool { return c.Step == txntest.StepSchema && c.Row == "schema/docs" }, txntest.HoldResponse, 0)
		register(t, env.Client, input, "old", false)
		put(t, env.Client, input, "row", "1")
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, input.table, "old"); err != nil {
			t.Fatal(err)
		}
		<-registry.Fired()
		<-time.After(time.Second)
		register(t, env.Client, input, "new", false)
		put(t, env.Client, input, "row", "2")
		<-time.After(time.Second)
		registry.Release()
		pass(5 * time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		later := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, later, "new", input, observeEffect)
		start(t, later)
		pass(10 * time.Minute)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("the new observer committed %d times, want 1", n)
		}
	})
}

// TestUnreadableRegistry: a worker that cannot read the registry does not know whether a
// notification has an observer. It keeps the notification until it has read the registry.
func TestUnreadableRegistry(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true})
		handle(t, w, "m", middle, observeNothing)
		start(t, w)
		pass(time.Minute)
		register(t, env.Client, input, "old", false)
		put(t, env.Client, input, "row", "1")
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, input.table, "old"); err != nil {
			t.Fatal(err)
		}
		var readable atomic.Bool
		registry := faults.On("registry", func(c txntest.Call) bool {
			return c.Step == txntest.StepSchema && c.Row == "schema/docs" && !readable.Load()
		}, txntest.DropRequest, 0)
		<-registry.Fired()
		pass(10 * time.Minute)
		wantLeft(t, env.Client, 1, 0)
		readable.Store(true)
		pass(10 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}
