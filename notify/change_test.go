package notify_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestOneCommitPerChange has eight workers run for one change at the same time.
// Without the acknowledgment each of them commits.
func TestOneCommitPerChange(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		const workers = 8
		register(t, env.Client, input, "o", false)
		m := newMeeting(workers)
		var ev events
		for range workers {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true, OnEvent: ev.add})
			handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
				effect(tx, cell)
				return m.come(ctx)
			})
			start(t, w)
		}
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		pass(10 * time.Second)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d runs committed for one change", n)
		}
		if n := ev.count(notify.LostRace); n != workers-1 {
			t.Errorf("%d runs lost the race, want %d", n, workers-1)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestEveryChangeOnce writes many rows, some of them several times, while eight
// different workers run. A row that was written once is observed once. A row that was
// written n times is observed at least once and at most n times, and the last run sees the
// last change.
func TestEveryChangeOnce(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		const workers, rows = 8, 60
		register(t, env.Client, input, "o", false)
		for i := range workers {
			cfg := notify.Config{NoHints: i%2 == 0, Concurrency: 1 + i}
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), cfg)
			handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
				v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
				tx.Table("docs").Set(cell.Row, "d", "out", v)
				effect(tx, cell)
				return err
			})
			start(t, w)
		}
		times := func(i int) int { return 1 + i%3 }
		var writers sync.WaitGroup
		for i := range rows {
			c := env.Client
			writers.Go(func() {
				for n := range times(i) {
					_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
						tx.Table("docs").Set(fmt.Sprintf("row%d", i), "d", "in", []byte(strconv.Itoa(n)))
						return nil
					})
					if err != nil {
						t.Errorf("writer %d: %v", i, err)
					}
				}
			})
		}
		writers.Wait()
		wait(t, env.Client)
		got := effects(t, env.Client)
		for i := range rows {
			row := fmt.Sprintf("row%d", i)
			if n := got[row]; n < 1 || n > times(i) {
				t.Errorf("%s was written %d times and observed %d times", row, times(i), n)
			}
			if v, want := value(t, env.Client, output, row), strconv.Itoa(times(i)-1); v != want {
				t.Errorf("%s: the last run saw %q, want %q", row, v, want)
			}
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestCollapse: one run handles all changes before it.
func TestCollapse(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		for i := range 5 {
			put(t, env.Client, input, "row", strconv.Itoa(i))
		}
		var ev events
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
			if n := len(notify.TriggerOf(ctx).Triggers); string(v) == "4" && n != 5 {
				t.Errorf("%d notifications, want 5", n)
			}
			effect(tx, cell)
			return err
		})
		start(t, w)
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d runs, want 1", n)
		}
		if s := w.Stats(); s.Collapsed != 4 {
			t.Errorf("%d changes collapsed, want 4", s.Collapsed)
		}
		// With a wait after each change there is a run for each.
		for i := range 3 {
			put(t, env.Client, input, "row", "later"+strconv.Itoa(i))
			wait(t, env.Client)
		}
		if n := effects(t, env.Client)["row"]; n != 4 {
			t.Errorf("%d runs, want 4", n)
		}
	})
}

// TestLostHint: a worker whose queue has no room drops hints; the scan finds
// their cells.
func TestLostHint(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{Queue: 1, Concurrency: 1})
		release := make(chan struct{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			<-release
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		pass(5 * time.Minute) // the scan is slow now
		const rows = 20
		for i := range rows {
			put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
		}
		close(release)
		wait(t, env.Client)
		if got := effects(t, env.Client); len(got) != rows {
			t.Errorf("%d rows observed, want %d", len(got), rows)
		}
		if s := w.Stats(); s.HintsDropped == 0 {
			t.Error("no hint was dropped")
		}
	})
}

// TestHintIsPrompt: the worker runs a change of its own process at once, long before the
// next sweep.
func TestHintIsPrompt(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(10 * time.Minute)
		begun := time.Now()
		put(t, env.Client, input, "row", "v")
		pass(10 * time.Millisecond)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d runs after %v", n, time.Since(begun))
		}
	})
}

// TestChangeDuringRun: a change that arrives while the observer runs is seen by
// another run, and its notification survives the removal of the first.
func TestChangeDuringRun(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{})
		var once sync.Once
		other := env.NewClient(txn.Config{TokenTTL: time.Minute})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
			// Committed after this run's start: above what it acknowledges.
			once.Do(func() { put(t, other, input, "row", "second") })
			tx.Table("docs").Set(cell.Row, "d", "out", v)
			effect(tx, cell)
			return err
		})
		put(t, env.Client, input, "row", "first")
		start(t, w)
		wait(t, env.Client)
		if v := value(t, env.Client, output, "row"); v != "second" {
			t.Errorf("the last run saw %q", v)
		}
		if n := effects(t, env.Client)["row"]; n != 2 {
			t.Errorf("%d runs, want 2", n)
		}
	})
}

// TestSeveralObservers: two observers of one column, in one worker and in two,
// each see every change once, and the notification stays until both have.
func TestSeveralObservers(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				register(t, env.Client, input, "a", false)
				register(t, env.Client, input, "b", false)
				ws := make([]*notify.Worker, workers)
				for i := range ws {
					ws[i] = newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
				}
				release := make(chan struct{})
				mark := func(id string) notify.ObserverFunc {
					return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
						if id == "b" {
							select {
							case <-release:
							case <-ctx.Done():
								return ctx.Err()
							}
						}
						tx.Table("effects").Set(fmt.Sprintf("%s-%s/%d", id, cell.Row, tx.StartTS()), "e", "x", nil)
						return nil
					}
				}
				handle(t, ws[0], "a", input, mark("a"))
				handle(t, ws[workers-1], "b", input, mark("b"))
				for _, w := range ws {
					start(t, w)
				}
				const rows = 10
				for i := range rows {
					put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
				}
				pass(20 * time.Second)
				wantLeft(t, env.Client, rows, 0)
				close(release)
				wait(t, env.Client)
				got := effects(t, env.Client)
				for i := range rows {
					for _, id := range []string{"a", "b"} {
						if n := got[fmt.Sprintf("%s-row%d", id, i)]; n != 1 {
							t.Errorf("observer %s ran %d times for row%d", id, n, i)
						}
					}
				}
				pass(3 * time.Minute)
				wantLeft(t, env.Client, 0, 0)
			})
		})
	}
}

// TestWeakStorm: many writers notify one hot cell at once. None of them
// conflicts, and the observer's last run sees all of them.
func TestWeakStorm(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true)
		writer := env.NewClient(txn.Config{TokenTTL: time.Minute})
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			n := 0
			s, err := env.Client.Snapshot(ctx, txn.At(tx.StartTS()))
			if err != nil {
				return err
			}
			for _, err := range s.Table("effects").ReadRows(ctx, nil) {
				if err != nil {
					return err
				}
				n++
			}
			tx.Table("docs").Set("sum", "d", "out", []byte(strconv.Itoa(n)))
			return nil
		}, notify.Weak())
		start(t, w)
		const writers, each = 40, 5
		var all sync.WaitGroup
		for i := range writers {
			all.Go(func() {
				for n := range each {
					if err := notifyWeakly(t.Context(), writer, input, "hot", fmt.Sprintf("%d-%d", i, n)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		wait(t, env.Client)
		if v, want := value(t, env.Client, output, "sum"), strconv.Itoa(writers*each); v != want {
			t.Errorf("the observer saw %s of %s transactions", v, want)
		}
		if s := writer.Stats(); s.Conflicts != 0 {
			t.Errorf("%d conflicts among weak notifications", s.Conflicts)
		}
		if s := w.Stats(); s.Runs >= writers*each {
			t.Errorf("%d runs for %d notifications: nothing collapsed", s.Runs, writers*each)
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestWeakOnly: a transaction that only notifies, and a notification by the
// client, run the observer, and each once.
func TestWeakOnly(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect, notify.Weak())
		start(t, w)
		ts, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("docs").Notify("row", "d", "in")
			return nil
		})
		if err != nil || ts == 0 {
			t.Fatal(ts, err)
		}
		wait(t, env.Client)
		if err := changes.Notify(t.Context(), env.Client, txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 2 {
			t.Errorf("%d runs, want 2", n)
		}
	})
}

// TestWeakNotificationAfterRun: a weak notification that is written late, below what the
// observer has acknowledged, needs no run: the run waited for the locks of the transaction
// and saw its writes.
func TestWeakNotificationAfterRun(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true)
		faults := txntest.NewFaults(t)
		held := faults.OnStep(txntest.StepNotify, txntest.Hold)
		writer := env.NewClient(txn.Config{LockTTL: time.Hour}, faults.DialOptions()...)
		var seen tso.Timestamp
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			_, ok, err := tx.Table("effects").Get(ctx, "late", "e", "x")
			if ok {
				seen = tx.StartTS()
			}
			effect(tx, cell)
			return err
		}, notify.Weak())
		start(t, w)
		late := make(chan error, 1)
		go func() { late <- notifyWeakly(t.Context(), writer, input, "hot", "late") }()
		<-held.Fired()
		// The observer starts above the other transaction's commit_ts and waits for its lock.
		if err := notifyWeakly(t.Context(), env.Client, input, "hot", "early"); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if s := w.Stats(); s.Runs != 1 || s.Committed != 0 {
			t.Errorf("the observer does not wait for the lock: %+v", s)
		}
		held.Release()
		if err := <-late; err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if seen == 0 {
			t.Error("no run saw the late transaction")
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestWeakStartedEarlier: a transaction that started before the observer's last
// run and committed after it is seen by another run. Its notification has
// the timestamp commit_ts; with start_ts it would seem acknowledged.
func TestWeakStartedEarlier(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", true)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect, notify.Weak())
		start(t, w)
		early, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		early.Table("effects").Set("early", "e", "x", nil)
		early.Table("docs").Notify("hot", "d", "in")
		if err := notifyWeakly(t.Context(), env.Client, input, "hot", "late"); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if _, err := early.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if n := effects(t, env.Client)["hot"]; n != 2 {
			t.Errorf("%d runs, want 2", n)
		}
	})
}

// TestNotificationOutlivesRun: the worker that ran the observer dies before it has removed
// the notification. Another worker finds the change acknowledged.
func TestNotificationOutlivesRun(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		faults := txntest.NewFaults(t)
		cut := faults.OnStep(txntest.StepClear, txntest.Crash)
		first := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), notify.Config{})
		handle(t, first, "o", input, observeEffect)
		start(t, first)
		<-cut.Fired()
		faults.Kill()
		wantLeft(t, env.Client, 1, 0)
		second := newWorker(t, env.Client, notify.Config{})
		handle(t, second, "o", input, observeEffect)
		start(t, second)
		pass(2 * time.Minute)
		if s := second.Stats(); s.Runs != 0 || s.Acknowledged == 0 {
			t.Errorf("%+v", s)
		}
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestStrandedChangeIsFound: a writer dies after its commit point, and no client reads its
// secondary. Only a lock shows the change. The sweep rolls it forward, and its observer
// runs.
func TestStrandedChangeIsFound(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		for _, die := range []txntest.Step{txntest.StepSecondaries, txntest.StepCommit} {
			faults := txntest.NewFaults(t)
			dies := faults.OnStep(die, txntest.Crash)
			victim := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-dies.Fired()
				faults.Kill()
				cancel()
			}()
			_, err := victim.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
				tx.Table("effects").Set("primary", "e", "x", nil)
				tx.Table("docs").Set(string(die), "d", "in", nil)
				return nil
			})
			if (err == nil) != (die == txntest.StepSecondaries) {
				t.Fatal(err)
			}
			pass(3 * time.Minute)
		}
		got := effects(t, env.Client)
		if got[string(txntest.StepSecondaries)] != 1 || got[string(txntest.StepCommit)] != 0 {
			t.Errorf("effects %v", got)
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "docs", nil) {
			t.Errorf("lock left: %+v, %v", l, err)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}
