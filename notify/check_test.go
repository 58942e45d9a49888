package notify_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A check reads the cell once for each observer of its worker. These tests are about what
// happens between two of these reads, and behind an observer that gave up.

// offers is a Finder that offers what a test sends.
type offers chan changes.Notification

func (f offers) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case n := <-f:
			s.Offer(ctx, n, func() {})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// offered is a notification that was found earlier, and may be handled by now.
func offered(row string) changes.Notification {
	return changes.Notification{Cell: txn.Cell{Table: input.table, Row: row, Family: input.Family, Qualifier: input.Qualifier}, Triggers: []format.NotifyCell{{TS: 1}}}
}

// nthRead matches the n-th read of a row.
func nthRead(row string, n int) func(txntest.Call) bool {
	reads := 0
	return func(c txntest.Call) bool {
		if c.Step == txntest.StepRead && c.Row == row {
			reads++
			return reads == n
		}
		return false
	}
}

func observeNothing(context.Context, *txn.Txn, txn.Cell) error { return nil }

// TestBackfillBetweenReads: the notification of a backfill arrives after the new observer
// has read the cell, and before the other observer of the column reads it. The second read
// shows the notification, at a timestamp below the first one.
func TestBackfillBetweenReads(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "b", false)
		put(t, env.Client, input, "row", "v")
		first := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, first, "b", input, observeNothing)
		stop := start(t, first)
		wait(t, env.Client)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, env.Client, 0, 0)
		// A release adds observer a.
		found, faults := make(offers), txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true, Finder: found})
		handle(t, w, "a", input, observeEffect)
		handle(t, w, "b", input, observeNothing)
		stop = start(t, w)
		pass(2 * time.Minute) // longer than SchemaMaxAge
		bf := txntest.NewFaults(t)
		operator := env.NewClient(txn.Config{TokenTTL: time.Minute}, bf.DialOptions()...)
		note := bf.OnStep(txntest.StepNotify, txntest.Hold)
		done := make(chan error, 1)
		go func() {
			_, err := notify.Backfill(t.Context(), operator, notify.BackfillConfig{Table: input.table, Column: input.Column})
			done <- err
		}()
		<-note.Fired() // it has its timestamp
		second := faults.On("second read", nthRead("row", 2), txntest.Hold, 1)
		found <- offered("row")
		<-second.Fired()
		note.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		second.Release()
		pass(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		later := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, later, "a", input, observeEffect)
		handle(t, later, "b", input, observeNothing)
		start(t, later)
		pass(time.Hour)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("after the backfill the new observer committed %d times, want 1", n)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestChangeBetweenReads: a cell changes after one observer has read it, and before the
// other observer of the column reads it.
func TestChangeBetweenReads(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		found, faults := make(offers), txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{NoHints: true, Finder: found})
		seen := map[string]string{}
		observe := func(id string) notify.ObserverFunc {
			return func(ctx context.Context, tx *txn.Txn, c txn.Cell) error {
				v, _, err := tx.Table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
				seen[id] = string(v)
				return err
			}
		}
		handle(t, w, "a", input, observe("a"))
		handle(t, w, "b", input, observe("b"))
		stop := start(t, w)
		put(t, env.Client, input, "row", "1")
		prewrite := faults.OnStep(txntest.StepPrewrite, txntest.Hold) // of a's run
		found <- offered("row")
		<-prewrite.Fired()
		put(t, env.Client, input, "row", "2")
		prewrite.Release()
		pass(time.Minute)
		if seen["a"] != "1" || seen["b"] != "2" {
			t.Fatalf("the check showed %v", seen)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		later := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, later, "a", input, observe("a"))
		handle(t, later, "b", input, observe("b"))
		start(t, later)
		pass(10 * time.Minute)
		if seen["a"] != "2" || seen["b"] != "2" {
			t.Errorf("the observers have seen %v, want the second value", seen)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestNewerThanDeadLetter: a cell changes whose last change is a dead letter, and there is
// no hint. Another observer of the column has no worker, so the notifications stay.
func TestNewerThanDeadLetter(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		broken, ran := true, 0
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{MaxAttempts: 1, NoHints: true})
		handle(t, w, "a", input, func(context.Context, *txn.Txn, txn.Cell) error {
			if broken {
				return errBroken
			}
			ran++
			return nil
		})
		start(t, w)
		put(t, env.Client, input, "row", "1")
		pass(10 * time.Minute)
		if n := len(deadLetters(t, env.Client)); n != 1 {
			t.Fatalf("%d dead letters, want 1", n)
		}
		broken = false
		put(t, env.Client, input, "row", "2")
		pass(10 * time.Minute)
		if ran != 1 {
			t.Errorf("the observer ran %d times for the newer change, want 1", ran)
		}
	})
}

// TestNewerThanFinishedCheck: a cell changes in which this worker has nothing to do, and
// whose notification stays for the observer of another worker. There is no hint.
func TestNewerThanFinishedCheck(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		handle(t, w, "a", input, observeEffect)
		start(t, w)
		for i, value := range []string{"1", "2"} {
			put(t, env.Client, input, "row", value)
			pass(20 * time.Second) // several sweeps, and less than a worker skips a cell without a newer change
			if n := effects(t, env.Client)["row"]; n != 1+i {
				t.Errorf("the observer committed %d times for %d changes", n, 1+i)
			}
		}
	})
}

// TestParkedByAll: both observers of a column gave up, and the worker died before it
// removed the notification. Another worker removes it.
func TestParkedByAll(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{MaxAttempts: 1})
		handle(t, w, "a", input, observeBroken)
		handle(t, w, "b", input, observeBroken)
		stop := start(t, w)
		removal := faults.OnStep(txntest.StepClear, txntest.Hold)
		put(t, env.Client, input, "row", "v")
		<-removal.Fired()
		faults.Kill()
		_ = stop()
		wantLeft(t, env.Client, 1, 2)
		other := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
		handle(t, other, "a", input, observeBroken)
		handle(t, other, "b", input, observeBroken)
		start(t, other)
		wait(t, env.Client)
		pass(2 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
		if n := len(deadLetters(t, env.Client)); n != 2 {
			t.Errorf("%d dead letters, want 2", n)
		}
	})
}

// TestNewerThanSnoozed: a cell changes whose last change the observer has snoozed, and there
// is no hint. The newer change does not wait.
func TestNewerThanSnoozed(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		ran := snoozeFirst(t, env)
		put(t, env.Client, input, "row", "1")
		pass(10 * time.Second)
		put(t, env.Client, input, "row", "2")
		pass(2 * time.Minute)
		if *ran != 2 {
			t.Errorf("the observer ran %d times, want 2: once for each change", *ran)
		}
	})
}

// TestLateWeakNotificationBehindSnooze: an observer snoozes a weak notification. Then one
// arrives whose timestamp is newer, but below the start of the run. It does not wait.
func TestLateWeakNotificationBehindSnooze(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", true)
		if err := notifyWeakly(t.Context(), env.Client, input, "row", "first"); err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		writer := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
		late := faults.OnStep(txntest.StepNotify, txntest.Hold)
		done := make(chan error, 1)
		go func() { done <- notifyWeakly(t.Context(), writer, input, "row", "second") }()
		<-late.Fired() // it has its timestamp
		ran := snoozeFirst(t, env, notify.Weak())
		<-time.After(5 * time.Second)
		if *ran != 1 {
			t.Fatalf("the observer ran %d times, want 1", *ran)
		}
		late.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		if *ran != 2 {
			t.Errorf("the observer ran %d times, want 2: once for the late notification", *ran)
		}
	})
}

// snoozeFirst starts a worker without hints. Its observer a snoozes its first run for an
// hour. ran counts the runs.
func snoozeFirst(t *testing.T, env *txntest.Env, opts ...notify.HandleOption) (ran *int) {
	t.Helper()
	ran = new(int)
	w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{NoHints: true})
	handle(t, w, "a", input, func(context.Context, *txn.Txn, txn.Cell) error {
		if *ran++; *ran == 1 {
			return notify.Snooze(time.Hour)
		}
		return nil
	}, opts...)
	start(t, w)
	return ran
}
