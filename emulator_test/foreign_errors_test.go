package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// The cause of a cancelled context may be another transaction's error, as errgroup
// makes it. A commit that is cancelled by another transaction's conflict has an unknown
// outcome. Before the fix it took that conflict for its own, and removed its
// secondaries' locks although its primary was committed.
func TestCauseIsAnothersConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, env.Client, "1", "bob", "joe")
		g, gctx := errgroup.WithContext(t.Context())
		tx := beginSet(t, a, "3", "bob", "joe")
		slow := faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		done := commitInBackground(gctx, tx)
		<-slow.Fired()
		// The rule fires before the request is sent. Wait until the server has committed.
		synctest.Wait()
		g.Go(func() error { // another transaction, which has a conflict
			one := beginSet(t, env.Client, "x", "other")
			mustSet(t, env.Client, "y", "other")
			_, err := one.Commit(gctx)
			return err
		})
		err := (<-done).err
		if !errors.Is(err, txn.ErrUndetermined) || errors.Is(err, txn.ErrConflict) || !errors.Is(err, context.Canceled) {
			t.Errorf("want an undetermined outcome: %v", err)
		}
		if err := g.Wait(); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("the other transaction: %v", err)
		}
		slow.Release()
		advance(time.Minute)
		for _, row := range []string{"bob", "joe"} {
			wantValue(t, takeSnapshot(t, env.Client), row, "3")
		}
		var u *txn.UndeterminedError
		if errors.As(err, &u) {
			if s, err := env.Client.Settle(t.Context(), u); err != nil || s.State != txn.StateCommitted {
				t.Errorf("settled: %v, %v", s.State, err)
			}
		}
	})
}

// The same if the cause looks as if Bigtable had refused this commit. Before the fix a
// successful commit was reported as failed.
func TestCauseIsAnothersRefusal(t *testing.T) {
	for name, cause := range map[string]error{
		"too old":   &txn.TooOldError{TS: 1, SafePoint: 2},
		"not found": status.Error(codes.NotFound, "another table"),
		"denied":    status.Error(codes.PermissionDenied, "another table"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
				gctx, cancel := context.WithCancelCause(t.Context())
				slow := faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
				done := commitInBackground(gctx, beginSet(t, a, "3", "bob", "joe"))
				<-slow.Fired()
				synctest.Wait() // the commit is applied now
				cancel(cause)
				if err := (<-done).err; !errors.Is(err, txn.ErrUndetermined) || !errors.Is(err, context.Canceled) {
					t.Errorf("want an undetermined outcome: %v", err)
				}
				slow.Release()
				advance(time.Minute)
				for _, row := range []string{"bob", "joe"} {
					wantValue(t, takeSnapshot(t, env.Client), row, "3")
				}
			})
		})
	}
}

// A transaction that has a conflict on one row does not wait for a live younger
// transaction on another row. Before the fix it waited, and kept its own locks alive,
// until the younger one ended.
func TestConflictingTransactionDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, y, faults := newFaultyClient(t, txn.Config{})
		b := env.NewClient(txn.Config{})
		mustSet(t, env.Client, "0", "x", "y", "z")
		old := beginSet(t, b, "old", "z", "x", "y")
		mustSet(t, env.Client, "1", "x") // old has a conflict now
		young := beginSet(t, y, "young", "y", "y2")
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		younger := commitInBackground(t.Context(), young)
		<-slow.Fired()
		older := commitInBackground(t.Context(), old)
		advance(100 * time.Millisecond)
		reader := inBackground(func() error { wantValue(t, takeSnapshot(t, env.Client), "z", "0"); return nil })
		advance(15 * time.Second)
		slow.Release()
		if o := <-older; !errors.Is(o.err, txn.ErrConflict) || o.took > 3*time.Second {
			t.Errorf("the transaction with the conflict: %v after %v", o.err, o.took)
		}
		if r := <-reader; r.took > 3*time.Second {
			t.Errorf("a reader of its cell waited for %v", r.took)
		}
		if o := <-younger; o.err != nil {
			t.Error(o.err)
		}
	})
}

// After a prewrite whose answer was lost, a transaction may wait long for a live one, which aborts then.
// The wait does not count as time in which prewrites fail.
func TestOneFailureBeforeALongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, b, faults := newFaultyClient(t, txn.Config{})
		mustSet(t, env.Client, "0", "y")
		others := txntest.NewFaults(t)
		y := env.NewClient(txn.Config{}, others.DialOptions()...)
		txntest.Patient(y)
		faults.OnStep(txntest.StepPrewrite, txntest.DropRequest)
		slow := others.On("slow", stepOn(txntest.StepPrewrite, "z"), txntest.Hold, 1)
		old := beginSet(t, b, "old", "y")
		young := beginSet(t, y, "young", "y", "z")
		ctx, abort := context.WithCancel(t.Context())
		defer abort()
		aborted := commitInBackground(ctx, young)
		<-slow.Fired()
		synctest.Wait() // y is locked
		done := commitInBackground(t.Context(), old)
		advance(15 * time.Second)
		if len(done) > 0 {
			t.Fatal("the commit did not wait")
		}
		abort()
		if o := <-aborted; o.err == nil {
			t.Error("the other one has committed")
		}
		if o := <-done; o.err != nil {
			t.Errorf("%v; want a commit after the other one has aborted", o.err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "y", "old")
	})
}

// A commit whose prewrites fail for longer than the ttl gives up.
func TestPrewriteThatFailsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		faults.On("prewrite", step(txntest.StepPrewrite), txntest.DropRequest, 0)
		began := time.Now()
		_, err := beginSet(t, a, "3", "bob").Commit(t.Context())
		if took := time.Since(began); status.Code(err) != codes.Unavailable || took < 10*time.Second || took > 15*time.Second {
			t.Errorf("%v after %v; want the commit to give up after the ttl of 10 s", err, took)
		}
	})
}

// A transaction that has a conflict also stops waiting for a lock whose primary it
// cannot read.
func TestConflictingTransactionAndUnreadablePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, b, faults := newFaultyClient(t, txn.Config{})
		others := txntest.NewFaults(t)
		y := env.NewClient(txn.Config{}, others.DialOptions()...)
		mustSet(t, env.Client, "0", "x", "y", "z", "p")
		old := beginSet(t, b, "old", "z", "x", "y")
		mustSet(t, env.Client, "1", "x") // old has a conflict now
		slow := others.OnStep(txntest.StepCommit, txntest.Hold)
		younger := commitInBackground(t.Context(), beginSet(t, y, "young", "p", "y"))
		<-slow.Fired()
		unreadable := faults.On("p", func(c txntest.Call) bool { return c.Row == "p" }, txntest.DropRequest, 0)
		conflicts := faults.On("x", func(c txntest.Call) bool { return c.Step == txntest.StepPrewrite && c.Row == "x" }, txntest.Hold, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		older := commitInBackground(ctx, old)
		<-unreadable.Fired() // old waits for the lock on y
		<-conflicts.Fired()
		conflicts.Release()
		advance(100 * time.Millisecond)
		wantValue(t, takeSnapshot(t, env.Client), "z", "0")
		if o := <-older; !errors.Is(o.err, txn.ErrConflict) || o.took > 3*time.Second {
			t.Errorf("the transaction with the conflict: %v after %v", o.err, o.took)
		}
		slow.Release()
		if o := <-younger; o.err != nil {
			t.Error(o.err)
		}
	})
}

// The function of an Update runs another transaction, whose outcome is unknown. Update
// rolls its own transaction back and does not return the other one's UndeterminedError
// as its own. Before the fix, settling that error reported Update's transaction as
// committed.
func TestUndeterminedInsideUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, other, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		runs := 0
		_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			runs++
			set(tx, "outer", "bob")
			nested, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			err := tryUpdate(nested, other, "inner", "log")
			if !errors.Is(err, txn.ErrUndetermined) {
				t.Errorf("the nested transaction: %v", err)
			}
			return err
		})
		var u *txn.UndeterminedError
		if err == nil || errors.Is(err, txn.ErrUndetermined) || errors.As(err, &u) || !errors.Is(err, context.DeadlineExceeded) || runs != 1 {
			t.Errorf("after %d runs: %v", runs, err)
		}
		wantValue(t, takeSnapshot(t, env.Client), "bob", "")
	})
}

// A collection is cancelled because another deployment's collection was busy. It must
// not report that it lost its own lease.
func TestCauseIsAnothersCollection(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		mustSet(t, env.Client, "1", "bob")
		advance(3 * time.Hour)
		mustSet(t, env.Client, "2", "bob")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := inBackground(func() error { _, err := gc.Run(ctx, env.Client, gc.Config{Retention: time.Hour}); return err })
		advance(10 * time.Second) // the collection waits in the fence
		cancel(&gc.BusyError{Holder: "a collector of another deployment", Left: time.Minute})
		var busy *gc.BusyError
		if o := <-done; errors.As(o.err, &busy) || !errors.Is(o.err, context.Canceled) {
			t.Errorf("the cancelled collection: %v", o.err)
		}
	})
}
