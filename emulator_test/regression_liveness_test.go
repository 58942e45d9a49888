package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// A reader waited the whole ttl for a secondary whose owner aborts, which
// leaves no trace at the primary; closed by isGone (resolve.go).
func TestReaderOfAbortedSecondary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
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
		synctest.Wait() // it has met the lock
		abort.Release()
		if o := <-owner; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("commit: %v, want a conflict", o.err)
		}
		if o := <-reader; o.took > 2*time.Second {
			t.Errorf("the read waited %v for a lock that was removed at once", o.took)
		}
	})
}

// Removing the locks of a transaction that others rolled back kept Commit from
// returning, past its context; closed by doing it in the background (commit.go).
func TestCleanUpKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
		faults.On("heartbeat", step(txntest.StepHeartbeat), txntest.DropRequest, 0)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		cleanUp := faults.OnStep(txntest.StepRollBackCell, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob", "joe"))
		<-slow.Fired()
		pass(12 * time.Second)
		wantValue(t, takeSnapshot(t, env.Client), "bob", "") // rolls it back
		slow.Release()
		if o := <-owner; !errors.Is(o.err, txn.ErrConflict) || o.took > 13*time.Second {
			t.Errorf("commit: %v after %v, want a conflict after 12s", o.err, o.took)
		}
		<-cleanUp.Fired()
		cleanUp.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}

// While one commit wrote the client's token, others waited for it past their
// own contexts; closed by waiting for either in ensure (token.go).
func TestTokenKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newRegression(t, txn.Config{TokenTTL: 5 * time.Second})
		faults.On("token", step(txntest.StepToken), txntest.Hold, 0)
		commit := func(row string, timeout time.Duration) <-chan outcome {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			t.Cleanup(cancel)
			ch := commitInBackground(ctx, beginSet(t, a, "3", row))
			synctest.Wait()
			return ch
		}
		first, hurried, third := commit("r1", time.Minute), commit("r2", time.Second), commit("r3", time.Minute)
		if o := <-hurried; !errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, txn.ErrUndetermined) || o.took != time.Second {
			t.Errorf("commit with a deadline of 1s: %v after %v", o.err, o.took)
		}
		for _, ch := range []<-chan outcome{first, third} {
			if o := <-ch; o.err != nil || o.took > 6*time.Second {
				t.Errorf("commit: %v after %v; it is to do without a token after 5s", o.err, o.took)
			}
		}
	})
}

// One renewal of the token that hung made all live locks of its client dead;
// closed by giving a renewal up in time for the next (renewOnce, token.go).
func TestHungTokenRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		faults.On("renewal", step(txntest.StepToken), txntest.Hold, 1)
		pass(6 * time.Second)
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client that is alive: %v", o.err)
		}
		<-reader
	})
}

// One heartbeat that hung let the primary lock expire; closed by giving it up
// in time for the next (heartbeat.go).
func TestHungHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, LockTTL: 9 * time.Second})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		faults.OnStep(txntest.StepHeartbeat, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		pass(10 * time.Second)
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client that is alive: %v", o.err)
		}
		<-reader
	})
}

// Resolve judged a lock by the ttl it was listed with, and rolled a live
// transaction back; closed by reading the primary again (justRead, resolve.go).
func TestResolveOfOldListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		met := 0
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			met++
			pass(15 * time.Second) // heartbeats go on
			if s, err := admin.Resolve(t.Context(), env.Client, l); err != nil || s.State != txn.StateLocked {
				t.Errorf("resolve: %v, %v; want locked", s.State, err)
			}
		}
		slow.Release()
		if o := <-owner; o.err != nil || met != 1 {
			t.Errorf("commit: %v; %d locks listed", o.err, met)
		}
	})
}

// A prewrite that was not sent because another had failed hid why that failed, a
// conflict for example, on which Update then gave up; closed by returning the
// failure alone (prewriteAll). It took a race of a few nanoseconds: this is tried
// often, and would still not fail each time.
func TestFailureAmongManyPrewrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := newRegression(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepPrewrite))...)
		for range 2000 {
			if err := tryUpdate(t.Context(), a, "v", "bob", "joe"); status.Code(err) != codes.PermissionDenied {
				t.Fatalf("update: %v, want the refusal", err)
			}
		}
	})
}

// Two transactions that lock the same rows in opposite orders cost a ttl each
// time they met; closed by wait-die (resolveForWrite) and isGone (resolve.go).
func TestOppositeOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := func(primary, other string) (<-chan outcome, *txntest.Rule) {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			hold := faults.On("prewrite of "+other, stepOn(txntest.StepPrewrite, other), txntest.Hold, 1)
			ch := inBackground(func() error { return tryUpdate(ctx, c, primary, primary, other) })
			<-hold.Fired()
			synctest.Wait()
			return ch, hold
		}
		older, bobLocked := start("bob", "joe")
		younger, joeLocked := start("joe", "bob")
		bobLocked.Release() // the older one meets the lock on joe and waits
		synctest.Wait()
		joeLocked.Release() // the younger one dies on bob's
		for _, ch := range []<-chan outcome{older, younger} {
			if o := <-ch; o.err != nil || o.took > 5*time.Second {
				t.Errorf("commit: %v after %v", o.err, o.took)
			}
		}
	})
}

// Contention over the same rows, in either order, must never cost a ttl.
func TestContention(t *testing.T) {
	for _, orders := range [][2][2]string{{{"bob", "joe"}, {"bob", "joe"}}, {{"bob", "joe"}, {"joe", "bob"}}} {
		synctest.Test(t, func(t *testing.T) {
			env := txntest.New(t, txntest.Embedded())
			env.CreateTable("a", "f")
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			const clients, commits = 4, 25
			done := make(chan time.Duration, clients)
			for i := range clients {
				c := env.NewClient(txn.Config{LockTTL: time.Hour}, slow(5*time.Millisecond)...)
				go func() {
					var slowest time.Duration
					for range commits {
						begun := time.Now()
						if err := tryUpdate(ctx, c, "v", orders[i%2][:]...); err != nil {
							t.Error(err)
						}
						slowest = max(slowest, time.Since(begun))
					}
					done <- slowest
				}()
			}
			for range clients {
				if d := <-done; d > time.Minute {
					t.Errorf("orders %v: a commit took %v", orders, d)
				}
			}
		})
	}
}

// A lock whose owner has no token is as good as any until its ttl is over: a
// missing token says nothing (stale, token.go).
func TestMissingToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{})
		mustSet(t, a, "1", "warm") // writes the token
		synctest.Wait()
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := env.Bigtable.Open(txn.DefaultMetadataTable).Apply(t.Context(), "worker/"+a.Owner(), m); err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, env.Client)
		reader := inBackground(func() error { wantValue(t, s, "bob", "3"); return nil })
		synctest.Wait()
		slow.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit of a client without a token: %v", o.err)
		}
		<-reader
	})
}
