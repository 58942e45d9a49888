package notify_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// replayed replays the only dead letter.
func replayed(t *testing.T, c *txn.Client) {
	t.Helper()
	letters := deadLetters(t, c)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	if err := changes.Replay(t.Context(), c, letters[0]); err != nil {
		t.Fatal(err)
	}
}

// deadDeletion makes a deletion that is a dead letter of observer o, which has acknowledged
// nothing, and has garbage collection remove the delete. Observer b of the same column has acknowledged it.
// repaired makes the observer succeed.
func deadDeletion(t *testing.T, env *txntest.Env) (calls map[string]int, repaired func()) {
	t.Helper()
	register(t, env.Client, input, "o", false)
	register(t, env.Client, input, "b", false)
	broken := true
	calls = map[string]int{}
	w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{MaxAttempts: 1})
	handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		calls["o"]++
		if broken {
			return errBroken
		}
		return observeEffect(ctx, tx, cell)
	})
	handle(t, w, "b", input, func(context.Context, *txn.Txn, txn.Cell) error { calls["b"]++; return nil })
	start(t, w)
	put(t, env.Client, input, "row", "v")
	pass(time.Minute)
	if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table(input.table).Delete("row", input.Family, input.Qualifier)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var removed int64
	for range 4 {
		pass(15 * time.Minute)
		report, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		removed += report.Total.Deletes
	}
	if removed != 1 {
		t.Fatalf("garbage collection removed %d newest deletes, want 1", removed)
	}
	return calls, func() { broken = false }
}

// TestReplayOfCollectedDeletion: the dead letter of a deletion is replayed after garbage
// collection has removed the delete. Its observer runs, once, and no other.
func TestReplayOfCollectedDeletion(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		calls, repaired := deadDeletion(t, env)
		before := calls["o"]
		replayed(t, env.Client) // it fails again, and there is a new letter
		pass(10 * time.Minute)
		if got := calls["o"] - before; got != 1 {
			t.Errorf("the observer ran %d times after a replay, want 1", got)
		}
		repaired()
		replayed(t, env.Client)
		pass(10 * time.Minute)
		if got := effects(t, env.Client)["row"]; got != 1 {
			t.Errorf("%d effects, want 1", got)
		}
		if calls["b"] != 2 {
			t.Errorf("the other observer ran %d times, want 2: it has acknowledged the deletion", calls["b"])
		}
		if letters := deadLetters(t, env.Client); len(letters) != 0 {
			t.Errorf("left: %+v", letters)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestReplaysOfTwoLettersMeet: two operators replay different letters of a cell whose value has
// expired and was collected. The replay with the lower timestamp names the newer change. It arrives
// after a check has seen the other one, and before that check's removal arrives.
func TestReplaysOfTwoLettersMeet(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		if err := admin.SetExpiry(t.Context(), env.Client, input.table, input.Family, time.Hour); err != nil {
			t.Fatal(err)
		}
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		failing, runs := "b", 0
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Hour}, faults.DialOptions()...), notify.Config{MaxAttempts: 1})
		for _, observer := range []string{"a", "b"} {
			handle(t, w, observer, input, func(context.Context, *txn.Txn, txn.Cell) error {
				if failing == observer {
					return errBroken
				}
				if failing == "" && observer == "a" {
					runs++
				}
				return nil
			})
		}
		start(t, w)
		put(t, env.Client, input, "row", "first")
		pass(time.Minute)
		failing = "a"
		put(t, env.Client, input, "row", "second")
		letters := map[string]changes.DeadLetter{}
		for range 8 {
			pass(15 * time.Minute)
			if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: 10 * time.Minute}); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range deadLetters(t, env.Client) {
			letters[d.Observer] = d
		}
		if len(letters) != 2 || letters["a"].ChangeTS <= letters["b"].ChangeTS {
			t.Fatalf("letters %+v", letters)
		}
		failing = ""
		slow := txntest.NewFaults(t)
		operator := env.NewClient(txn.Config{TokenTTL: time.Minute, RPCTimeout: time.Hour}, slow.DialOptions()...)
		arrives := slow.OnStep(txntest.StepNotify, txntest.Hold)
		done := make(chan error, 1)
		go func() { done <- changes.Replay(t.Context(), operator, letters["a"]) }()
		<-arrives.Fired()
		removal := faults.OnStep(txntest.StepClear, txntest.Hold)
		if err := changes.Replay(t.Context(), env.Client, letters["b"]); err != nil {
			t.Fatal(err)
		}
		<-removal.Fired()
		arrives.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		removal.Release()
		pass(time.Hour)
		if runs != 1 {
			t.Errorf("the observer whose replay arrived late committed %d times, want 1", runs)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestWaitSeesReplayOfCollectedDeletion: Wait takes its timestamp after the replay of a
// collected deletion, and reads after the observer has run and the notification is gone.
// At that timestamp the run was not finished.
func TestWaitSeesReplayOfCollectedDeletion(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		_, repaired := deadDeletion(t, env)
		repaired()
		faults := txntest.NewFaults(t)
		waiter := env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Hour}, faults.DialOptions()...)
		letters := deadLetters(t, env.Client)
		if err := changes.Replay(t.Context(), env.Client, letters[0]); err != nil {
			t.Fatal(err)
		}
		first := faults.On("first read", func(c txntest.Call) bool { return c.Step == txntest.StepRead && c.Table == input.table }, txntest.Hold, 1)
		pending := 0
		done := make(chan error, 1)
		go func() {
			_, err := notify.Wait(t.Context(), waiter, notify.WaitConfig{Progress: func(changes.Unfinished) { pending++ }})
			done <- err
		}()
		<-first.Fired()
		pass(10 * time.Minute)
		if effects(t, env.Client)["row"] != 1 {
			t.Fatal("the observer has not run for the deletion")
		}
		wantLeft(t, env.Client, 0, 0)
		first.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if pending == 0 {
			t.Error("Wait returned a timestamp at which the deletion was pending")
		}
	})
}

// TestReplayBeforeTheFailure: an operator replays a dead letter after a worker has stored
// the letter, and before it has stored the failure beside the notification. The failure
// says that the observer gave up, but the replay is newer.
func TestReplayBeforeTheFailure(t *testing.T) {
	long.RacedAtNight(t)
	for _, together := range []bool{true, false} {
		t.Run(fmt.Sprintf("together=%t", together), func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) { replayBeforeTheFailure(t, env, together) })
		})
	}
}

// together: one worker runs both observers of the column.
func replayBeforeTheFailure(t *testing.T, env *txntest.Env, together bool) {
	register(t, env.Client, input, "a", false)
	register(t, env.Client, input, "b", false)
	nothing := func(context.Context, *txn.Txn, txn.Cell) error { return nil }
	broken := true
	faults := txntest.NewFaults(t)
	w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{MaxAttempts: 1})
	handle(t, w, "a", input, func(ctx context.Context, tx *txn.Txn, c txn.Cell) error {
		if broken {
			return errBroken
		}
		return observeEffect(ctx, tx, c)
	})
	if together {
		handle(t, w, "b", input, nothing)
	}
	start(t, w)
	failure := faults.OnStep(txntest.StepFailure, txntest.Hold)
	put(t, env.Client, input, "row", "v")
	<-failure.Fired()
	letters := deadLetters(t, env.Client)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters, want 1", len(letters))
	}
	broken = false
	of := txntest.NewFaults(t)
	operator := env.NewClient(txn.Config{TokenTTL: time.Minute}, of.DialOptions()...)
	note := of.OnStep(txntest.StepNotify, txntest.Hold)
	replay := make(chan error, 1)
	go func() { replay <- changes.Replay(t.Context(), operator, letters[0]) }()
	<-note.Fired()
	failure.Release()
	note.Release()
	if err := <-replay; err != nil {
		t.Fatal(err)
	}
	pass(time.Hour)
	if !together {
		other := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, other, "b", input, nothing)
		start(t, other)
		pass(time.Hour)
	}
	if n := effects(t, env.Client)["row"]; n != 1 {
		t.Errorf("after the replay the observer committed %d times, want 1", n)
	}
	if letters := deadLetters(t, env.Client); len(letters) != 0 {
		t.Errorf("left: %+v", letters)
	}
	wantLeft(t, env.Client, 0, 0)
}
