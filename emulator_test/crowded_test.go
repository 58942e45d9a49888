package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestCrowdedRow has transactions that write different columns of a row at the same time. They
// do not conflict. The first prewrite finds the other column's cells, and takes a read and
// another prewrite. Then the client names the columns at once, for a while.
func TestCrowdedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		for _, tt := range []struct {
			what             string
			wait             time.Duration
			reads, prewrites int
		}{
			{"the first transaction", 0, 1, 2},
			{"the next one", time.Second, 0, 1},
			{"a much later one", time.Minute, 1, 2},
		} {
			advance(tt.wait)
			tx := begin(t, a)
			tx.Table("a").Set("row", "f", "mine", []byte(tt.what))
			mustSet(t, env.Client, tt.what, "row") // f:q, after the start of tx
			faults.Reset()
			began := time.Now()
			if _, err := tx.Commit(t.Context()); err != nil || time.Since(began) != 0 {
				t.Fatalf("%s: %v, after a pause of %v", tt.what, err, time.Since(began))
			}
			if n := faults.Count(); n[txntest.StepRead] != tt.reads || n[txntest.StepPrewrite] != tt.prewrites || n[txntest.StepCommit] != 1 {
				t.Errorf("%s: requests %v, want %d reads and %d prewrites", tt.what, n, tt.reads, tt.prewrites)
			}
			wantValue(t, takeSnapshot(t, env.Client), "row", tt.what)
		}
	})
}

// The prewrite of a crowded row, which names its columns, arrives long after its transaction was
// rolled back (hazard 1). It changes nothing.
func TestLatePrewriteOfACrowdedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		crowd := begin(t, a)
		crowd.Table("a").Set("row", "f", "mine", nil)
		mustSet(t, env.Client, "theirs", "row")
		if _, err := crowd.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		prewritten := func(c txntest.Call) bool { return c.Step == txntest.StepPrewrite && c.Row == "row" }
		late := faults.On("late", prewritten, txntest.Delay, 1)
		dies := faults.On("dies", prewritten, txntest.Crash, 1)
		tx := begin(t, a)
		set(tx, "ours", "row", "other")
		ctx, cancel := context.WithCancel(t.Context())
		done := commitInBackground(ctx, tx)
		<-dies.Fired()
		synctest.Wait() // the other row's prewrite is applied now
		faults.Kill()
		cancel()
		<-done
		advance(time.Minute)
		wantValue(t, takeSnapshot(t, env.Client), "other", "") // rolls the transaction back
		late.Release()
		wantNoLocks(t, env.Client)
		wantValue(t, takeSnapshot(t, env.Client), "row", "theirs")
	})
}

// TestConflictInOneLook counts the requests of a transaction that conflicts: a prewrite, and a
// read that finds out why. Its commit fails for a record, a mark and a lock.
func TestConflictInOneLook(t *testing.T) {
	for name, inTheWay := range map[string]func(*txn.Txn){
		"write": func(tx *txn.Txn) { set(tx, "theirs", "row") },
		"mark":  func(tx *txn.Txn) { tx.Table("a").Lock("row", "f", "q") },
	} {
		t.Run(name, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			tx := begin(t, a)
			set(tx, "ours", "row")
			other := begin(t, env.Client)
			inTheWay(other)
			if _, err := other.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			faults.Reset()
			var conflict *txn.ConflictError
			if _, err := tx.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Reason != format.ConflictWrite {
				t.Errorf("%v, want a conflict", err)
			}
			if n := faults.Count(); n[txntest.StepPrewrite] != 1 || n[txntest.StepRead] != 1 {
				t.Errorf("requests %v, want one prewrite and one read", n)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		held := faults.OnStep(txntest.StepCommit, txntest.Hold)
		older := begin(t, a)
		set(older, "theirs", "row")
		done := commitInBackground(t.Context(), older)
		<-held.Fired()
		younger := begin(t, env.Client) // above the lock
		set(younger, "ours", "row")
		if _, err := younger.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("commit at an older live lock: %v, want a conflict", err)
		}
		held.Release()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}
