package emulator_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A prewrite that cannot succeed is sent once, and none at all if garbage collection has passed the
// transaction. It is the same for a wide row. Nothing is left behind.
func TestPrewritesThatCannotSucceed(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	narrow := func(tx *txn.Txn) { set(tx, "new", "row") }
	for name, write := range map[string]func(*txn.Txn){"one column": narrow, "wide row": func(tx *txn.Txn) { setWide(tx, "new", "row") }} {
		t.Run(name+", refused", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepPrewrite))...)
				tx := begin(t, a)
				write(tx)
				if _, err := tx.Commit(t.Context()); status.Code(errors.Unwrap(err)) != codes.PermissionDenied && !strings.Contains(err.Error(), "PermissionDenied") {
					t.Errorf("commit: %v", err)
				}
				if n := faults.Count(); n[txntest.StepPrewrite] != 1 || n[txntest.StepRead] != 0 {
					t.Errorf("requests %v, want one prewrite", n)
				}
				wantNoLocks(t, env.Client)
			})
		})
		t.Run(name+", too old", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
				tx := begin(t, a)
				write(tx)
				advance(3 * time.Hour)
				if _, err := gc.Run(t.Context(), env.Client, gc.Config{Retention: time.Hour}); err != nil {
					t.Fatal(err)
				}
				var old *txn.TooOldError
				if _, err := tx.Commit(t.Context()); !errors.As(err, &old) || old.TS != tx.StartTS() || !old.Write {
					t.Errorf("commit: %v", err)
				}
				if n := faults.Count(); n[txntest.StepPrewrite] != 0 {
					t.Errorf("requests %v, want no prewrite", n)
				}
			})
		})
	}
}

// prewritesOf counts the prewrites of a row.
func prewritesOf(faults *txntest.Faults, row string) (n int) {
	for _, c := range faults.Calls() {
		if c.Step == txntest.StepPrewrite && c.Row == row {
			n++
		}
	}
	return n
}

// After a prewrite has failed, the commit sends none for other rows.
func TestPrewritesStopAtAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, Parallelism: 1})
		tx := beginSet(t, a, "new", "p", "r", "s")
		mustSet(t, env.Client, "theirs", "p")
		if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
			t.Errorf("commit: %v", err)
		}
		if n := faults.Count()[txntest.StepPrewrite]; n != 1 {
			t.Errorf("%d prewrites, want one", n)
		}
		wantNoLocks(t, env.Client)
	})
}

// The parts of a wide row are prewritten one after the other, until another row has failed.
func TestPrewritesOfPartsStopAtAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := begin(t, a)
		for _, q := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"} {
			tx.Table("a").Set("wide", "f", strings.Repeat(q, 2000), nil)
		}
		set(tx, "new", "other")
		mustSet(t, env.Client, "theirs", "wide", "other") // f:q of the wide row is no conflict
		var sent atomic.Int64
		first := faults.On("first part", func(c txntest.Call) bool {
			return c.Step == txntest.StepPrewrite && c.Row == "wide" && sent.Add(1) == 2
		}, txntest.Hold, 1)
		other := faults.On("other row", stepOn(txntest.StepPrewrite, "other"), txntest.Hold, 1)
		done := commitInBackground(t.Context(), tx)
		<-first.Fired()
		<-other.Fired()
		other.Release()
		synctest.Wait() // it has failed
		first.Release()
		if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v", o.err)
		}
		if n := prewritesOf(faults, "wide"); n != 2 {
			t.Errorf("%d prewrites of the wide row, want two", n)
		}
		wantNoLocks(t, env.Client)
	})
}

// The prewrite of a row takes effect, but its answer is lost. Then another client removes some of the
// locks. So it is rolling the transaction back.
func TestPrewriteFindsSomeOfItsLocks(t *testing.T) {
	for left := range 4 {
		synctest.Test(t, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			columns := []string{"x", "y", "z"}
			tx := begin(t, a)
			set(tx, "new", "p")
			for _, q := range columns {
				tx.Table("a").Set("row", "f", q, []byte("new"))
			}
			lost := faults.On("prewrite", stepOn(txntest.StepPrewrite, "row"), txntest.DropResponse, 1)
			look := faults.On("look", stepOn(txntest.StepRead, "row"), txntest.Hold, 1)
			done := commitInBackground(t.Context(), tx)
			<-lost.Fired()
			<-look.Fired()
			m := bigtable.NewMutation()
			m.DeleteCellsInColumn(format.WriteFamily, "f:none")
			for _, q := range columns[left:] {
				m.DeleteCellsInColumn(format.LockFamily, "f:"+q)
				m.DeleteCellsInColumn("f", q)
			}
			if err := env.Bigtable.Open("a").Apply(t.Context(), "row", m); err != nil {
				t.Fatal(err)
			}
			look.Release()
			o := <-done
			var conflict *txn.ConflictError
			switch {
			case left == 0 || left == len(columns): // it prewrites again, or all is there
				if o.err != nil {
					t.Errorf("%d locks are left: %v", left, o.err)
				}
			case !errors.As(o.err, &conflict) || conflict.Reason != format.ConflictRolledBack || conflict.Cell.Row != "p":
				t.Errorf("%d locks are left: %v, want that it was rolled back", left, o.err)
			}
			if n, want := prewritesOf(faults, "row"), map[bool]int{true: 2, false: 1}[left == 0]; n != want {
				t.Errorf("%d locks are left: %d prewrites, want %d", left, n, want)
			}
			synctest.Wait()
			wantNoLocks(t, env.Client)
		})
	}
}

// The first prewrite of a row gets no answer, and the second one finds a conflict. The first one may
// still arrive, so the client removes what it may have left.
func TestAbortAfterAnUnansweredPrewrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "new", "row")
		lost := faults.On("first", step(txntest.StepPrewrite), txntest.DropRequest, 1)
		second := faults.On("second", step(txntest.StepPrewrite), txntest.Hold, 1)
		done := commitInBackground(t.Context(), tx)
		<-lost.Fired()
		<-second.Fired()
		mustSet(t, env.Client, "theirs", "row")
		second.Release()
		if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v", o.err)
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 2 || n[txntest.StepAbort] != 1 {
			t.Errorf("requests %v, want two prewrites, and one that removes them", n)
		}
	})
}

// A prewrite is applied twice, so that the second answer says that there is a lock: the transaction's own.
// It is removed when another row fails.
func TestAbortAfterADoubledPrewrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "new", "p", "row")
		mustSet(t, env.Client, "theirs", "p")
		faults.On("doubled", stepOn(txntest.StepPrewrite, "row"), txntest.Duplicate, 1)
		primary := faults.On("primary", stepOn(txntest.StepPrewrite, "p"), txntest.Hold, 1)
		done := commitInBackground(t.Context(), tx)
		<-primary.Fired()
		synctest.Wait() // the row is locked
		primary.Release()
		if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v", o.err)
		}
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// The answer to a prewrite is lost, and so is the read of the row after it. The client tries again.
func TestPrewriteAndLookAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: 400 * time.Millisecond})
		tx := beginSet(t, a, "new", "row")
		faults.On("prewrite", step(txntest.StepPrewrite), txntest.DropResponse, 1)
		faults.On("look", step(txntest.StepRead), txntest.Crash, 1)
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 2 || n[txntest.StepRead] != 2 {
			t.Errorf("requests %v, want two prewrites and two reads", n)
		}
		wantValue(t, takeSnapshot(t, env.Client), "row", "new")
	})
}

// In a crowded row, a prewrite that follows a lost one names its columns.
func TestLostPrewriteOfACrowdedRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := begin(t, a)
		tx.Table("a").Set("row", "f", "mine", nil)
		mustSet(t, env.Client, "theirs", "row")
		faults.On("prewrite", step(txntest.StepPrewrite), txntest.DropRequest, 1)
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 2 || n[txntest.StepRead] != 1 {
			t.Errorf("requests %v, want two prewrites and one read", n)
		}
	})
}

// Failures of a prewrite count from the last answer on. Between two of them this one waits for a lock,
// for longer than Config.LockTTL.
func TestPrewriteFailsBeforeAndAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := beginSet(t, a, "new", "row")
		faults.On("first", step(txntest.StepPrewrite), txntest.DropRequest, 1)
		second := faults.On("second", step(txntest.StepPrewrite), txntest.Hold, 1)
		third := faults.On("third", step(txntest.StepPrewrite), txntest.DropRequest, 1)
		done := commitInBackground(t.Context(), tx)
		<-second.Fired()
		others := txntest.NewFaults(t)
		stuck := others.On("other row", stepOn(txntest.StepPrewrite, "z"), txntest.Hold, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b := env.NewClient(txn.Config{}, others.DialOptions()...)
		txntest.Patient(b)
		younger := commitInBackground(ctx, beginSet(t, b, "younger", "row", "z"))
		<-stuck.Fired()
		synctest.Wait() // it has locked the row
		second.Release()
		if o := <-younger; o.err == nil || o.took <= 10*time.Second {
			t.Errorf("the other transaction: %v after %v", o.err, o.took)
		}
		if o := <-done; o.err != nil {
			t.Fatalf("commit: %v after %v", o.err, o.took)
		}
		<-third.Fired()
		stuck.Release()
		synctest.Wait()
	})
}

// Readers may pass the primary lock of a client with Config.PassLocks, and no other one.
func TestWhichLocksArePassable(t *testing.T) {
	for _, pass := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, PassLocks: pass})
			held := faults.OnStep(txntest.StepCommit, txntest.Hold)
			done := commitInBackground(t.Context(), beginSet(t, a, "new", "p", "row"))
			<-held.Fired()
			for row, want := range map[string]bool{"p": pass, "row": false} {
				item := stored(t, env, row)[format.LockFamily][0]
				l, err := format.DecodeLock(format.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"}, tso.FromCell(item.Timestamp), item.Value)
				if err != nil || l.Passable != want || l.TTL != 10*time.Second {
					t.Errorf("with PassLocks %v, the lock on %s is %+v, %v", pass, row, l, err)
				}
			}
			held.Release()
			if o := <-done; o.err != nil {
				t.Error(o.err)
			}
		})
	}
}
