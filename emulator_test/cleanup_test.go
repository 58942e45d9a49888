package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A commit whose transaction was committed at another timestamp fails with ErrCorrupt,
// and leaves its secondaries' locks alone. Before the fix it removed them, and a part
// of the transaction was lost.
func TestCommittedElsewhereIsNotCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "3", "bob", "joe")
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), tx)
		<-slow.Fired()
		other, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		primary := txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}
		s, err := env.Client.Settle(t.Context(), &txn.UndeterminedError{Primary: primary, StartTS: tx.StartTS(), CommitTS: other})
		if err != nil || s.CommitTS != other {
			t.Fatalf("settle: %+v, %v", s, err)
		}
		slow.Release()
		if o := <-owner; !errors.Is(o.err, txn.ErrCorrupt) || errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v, want ErrCorrupt", o.err)
		}
		synctest.Wait()
		for _, row := range []string{"bob", "joe"} {
			wantValue(t, takeSnapshot(t, env.Client), row, "3")
		}
	})
}

// A reader of a secondary notices when the lock's owner rolls back, although this
// leaves nothing at the primary. Before the fix the reader waited for the whole ttl.
func TestReaderOfAbortedSecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "3", "bob", "joe")
		mustSet(t, env.Client, "1", "bob") // tx will conflict
		conflict := faults.On("prewrite of bob", stepOn(txntest.StepPrewrite, "bob"), txntest.Hold, 1)
		abort := faults.OnStep(txntest.StepAbort, txntest.Hold)
		owner := commitInBackground(t.Context(), tx)
		<-conflict.Fired()
		synctest.Wait() // joe is locked
		conflict.Release()
		<-abort.Fired()
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "joe", ""); return nil })
		synctest.Wait() // the reader waits for the lock
		abort.Release()
		if o := <-owner; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v, want a conflict", o.err)
		}
		if o := <-reader; o.took > 2*time.Second {
			t.Errorf("the read waited %v for a lock that was removed at once", o.took)
		}
	})
}

// If another client rolled the transaction back, Commit returns at once and removes the
// remaining locks in the background. Before the fix it waited for these requests even
// after its context had ended.
func TestCleanUpDoesNotDelayCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		faults.On("heartbeat", step(txntest.StepHeartbeat), txntest.DropRequest, 0)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		cleanUp := faults.OnStep(txntest.StepRollBackCell, txntest.Hold)
		tx := beginSet(t, a, "3", "bob", "joe")
		for _, row := range []string{"bob", "joe"} {
			tx.Table("a").Set(row, "f", "r", []byte("3"))
		}
		owner := commitInBackground(t.Context(), tx)
		<-slow.Fired()
		advance(12 * time.Second)
		wantValue(t, takeSnapshot(t, env.Client), "bob", "") // rolls the transaction back
		slow.Release()
		if o := <-owner; !errors.Is(o.err, txn.ErrConflict) || o.took > 13*time.Second {
			t.Errorf("commit: %v after %v, want a conflict after 12s", o.err, o.took)
		}
		<-cleanUp.Fired()
		cleanUp.Release()
		synctest.Wait()
		if n := faults.Count()[txntest.StepRollBackCell]; n != 2 {
			t.Errorf("%d requests remove the other three locks, want one for each row", n)
		}
		wantNoLocks(t, env.Client)
	})
}

// If the background has no room for locks that an ended context has left, the client counts them as
// given up.
func TestAbortWithoutRoomIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, BackgroundBytes: 1})
		busy := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		mustSet(t, a, "1", "ann", "tim") // tim fills the queue
		<-busy.Fired()
		prewrite := faults.On("prewrite of joe", stepOn(txntest.StepPrewrite, "joe"), txntest.Hold, 1)
		ctx, cancel := context.WithCancel(t.Context())
		owner := commitInBackground(ctx, beginSet(t, a, "3", "bob", "joe"))
		<-prewrite.Fired()
		synctest.Wait() // bob is locked
		cancel()
		prewrite.Release()
		if o := <-owner; !errors.Is(o.err, context.Canceled) {
			t.Errorf("commit: %v, want canceled", o.err)
		}
		if n := a.Stats().BackgroundDropped; n != 2 {
			t.Errorf("%d rows given up, want bob and joe", n)
		}
		busy.Release()
		advance(15 * time.Second) // the ttl of bob's lock
		wantValue(t, takeSnapshot(t, env.Client), "bob", "")
	})
}

// If the context ends while a transaction removes its locks, the client removes them in the
// background.
func TestAbortContinuesInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "3", "bob", "joe")
		mustSet(t, env.Client, "1", "bob") // tx will conflict
		conflict := faults.On("prewrite of bob", stepOn(txntest.StepPrewrite, "bob"), txntest.Hold, 1)
		abort := faults.OnStep(txntest.StepAbort, txntest.Hold)
		ctx, cancel := context.WithCancel(t.Context())
		owner := commitInBackground(ctx, tx)
		<-conflict.Fired()
		synctest.Wait() // joe is locked
		conflict.Release()
		<-abort.Fired()
		cancel()
		if o := <-owner; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v, want a conflict", o.err)
		}
		advance(time.Second)
		wantNoLocks(t, env.Client)
	})
}
