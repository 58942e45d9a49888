package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Two transactions that lock the same rows in opposite orders do not wait for a ttl.
// Before wait-die each such pair cost one.
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
		bobLocked.Release() // the older one finds the lock on joe and waits
		synctest.Wait()
		joeLocked.Release() // the younger one finds the lock on bob and fails
		for _, ch := range []<-chan outcome{older, younger} {
			if o := <-ch; o.err != nil || o.took > 5*time.Second {
				t.Errorf("commit: %v after %v", o.err, o.took)
			}
		}
	})
}

// Many transactions on the same rows, in either order, never wait for a ttl.
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

// A conflict names the newest of the commits that the prewrite found. The client remembers it,
// and a transaction that began between the commits conflicts without a request.
func TestConflictNamesTheNewestCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		old := beginSet(t, c, "1", "bob")
		mustSet(t, env.Client, "2", "bob")
		between := begin(t, env.Client).StartTS()
		mustSet(t, env.Client, "3", "bob")
		_, err := old.Commit(t.Context())
		var conflict *txn.ConflictError
		if !errors.As(err, &conflict) || conflict.ConflictTS <= between {
			t.Errorf("commit: %v, want a conflict above %d", err, between)
		}
	})
}

// If the context of Update ends while it waits for its next attempt, there is no next attempt.
func TestUpdateEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		runs := 0
		_, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			runs++
			mustSet(t, env.Client, "1", "bob")
			set(tx, "2", "bob")
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || runs != 1 || c.Stats().Retries != 0 {
			t.Errorf("%v after %d runs and %d retries; want the deadline after one run", err, runs, c.Stats().Retries)
		}
	})
}

// The pauses between runs of Update are at most as long as Config.Backoff says, and at most
// 250 ms: most conflicts end soon.
func TestPausesBetweenRuns(t *testing.T) {
	for _, tt := range []struct{ backoff, want txn.Backoff }{
		{txn.Backoff{Min: 10 * time.Millisecond, Max: 40 * time.Millisecond}, txn.Backoff{Min: 10 * time.Millisecond, Max: 40 * time.Millisecond}},
		{txn.Backoff{Min: time.Minute, Max: time.Hour}, txn.Backoff{Min: 250 * time.Millisecond, Max: 250 * time.Millisecond}},
	} {
		synctest.Test(t, func(t *testing.T) {
			env := txntest.New(t, txntest.Embedded())
			env.CreateTable("a", "f")
			c := env.NewClient(txn.Config{TokenTTL: -1, LatchWait: -1, Backoff: tt.backoff})
			var ended time.Time
			var pauses []time.Duration
			if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				if !ended.IsZero() {
					pauses = append(pauses, time.Since(ended))
				}
				if len(pauses) < 8 {
					mustSet(t, env.Client, "other", "bob")
				}
				set(tx, "own", "bob")
				ended = time.Now()
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			var all time.Duration
			for i, p := range pauses {
				if most := min(tt.want.Min<<i, tt.want.Max); p > most {
					t.Errorf("%v: pause %d took %v, want at most %v", tt.backoff, i, p, most)
				}
				all += p
			}
			if len(pauses) != 8 || all < tt.want.Min/4 {
				t.Errorf("%v: pauses %v", tt.backoff, pauses)
			}
		})
	}
}

// A conflict costs no more requests than it takes to find it.
func TestRequestsOfAConflict(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		name string
		// do lets a transaction of c conflict with one of other on row hot. held holds the other
		// one's commit.
		do   func(t *testing.T, c, other *txn.Client, held *txntest.Rule) error
		want map[txntest.Step]int
	}{
		{"a commit that its prewrite finds", func(t *testing.T, c, other *txn.Client, held *txntest.Rule) error {
			tx := beginSet(t, c, "1", "hot")
			held.Release()
			mustSet(t, other, "2", "hot")
			_, err := tx.Commit(t.Context())
			return err
		}, map[txntest.Step]int{txntest.StepPrewrite: 1, txntest.StepRead: 1}},

		// It waits for the lock of a younger transaction, and sees its commit. It reads the row, and
		// then the outcome. So the next transaction sends no prewrite.
		{"a lock that its prewrite waits for", func(t *testing.T, c, other *txn.Client, held *txntest.Rule) error {
			tx, late := beginSet(t, c, "1", "hot"), beginSet(t, c, "1", "hot")
			done := commitInBackground(t.Context(), beginSet(t, other, "2", "hot"))
			<-held.Fired()
			synctest.Wait()
			waiting := commitInBackground(t.Context(), tx)
			synctest.Wait()
			held.Release()
			if o := <-done; o.err != nil {
				t.Error(o.err)
			}
			o := <-waiting
			if _, err := late.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
				t.Errorf("the second one: %v", err)
			}
			return o.err
		}, map[txntest.Step]int{txntest.StepPrewrite: 1, txntest.StepRead: 2}},

		// It waits for the lock with its read, and then it is too old. It knows that before its
		// prewrite. The commit has removed its primary lock. It reads the row, the outcome, and the value below
		// the lock.
		{"a lock that its read waits for", func(t *testing.T, c, other *txn.Client, held *txntest.Rule) error {
			done := commitInBackground(t.Context(), beginSet(t, other, "2", "hot"))
			<-held.Fired()
			synctest.Wait()
			tx := begin(t, c)
			read := inBackground(func() error { _, _, err := tx.Table("a").Get(t.Context(), "hot", "f", "q"); return err })
			synctest.Wait()
			held.Release()
			for _, o := range []outcome{<-done, <-read} {
				if o.err != nil {
					t.Error(o.err)
				}
			}
			set(tx, "1", "hot")
			_, err := tx.Commit(t.Context())
			return err
		}, map[txntest.Step]int{txntest.StepRead: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, Backoff: txn.Backoff{Min: time.Second, Max: time.Second}})
				mustSet(t, c, "0", "warm")
				synctest.Wait()
				otherFaults := txntest.NewFaults(t)
				other := env.NewClient(txn.Config{TokenTTL: -1}, otherFaults.DialOptions()...)
				// The commit_ts of the other one is above the start of a reader that waits.
				held := otherFaults.OnStep(txntest.StepPrewrite, txntest.HoldResponse)
				faults.Reset()
				if err := tt.do(t, c, other, held); !errors.Is(err, txn.ErrConflict) {
					t.Errorf("%v, want a conflict", err)
				}
				synctest.Wait()
				got := faults.Count()
				delete(got, txntest.StepOracle)
				delete(got, txntest.StepSchema)
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Errorf("requests (-want +got):\n%s", d)
				}
			})
		})
	}
}

// If the outcome of a prewrite is unknown, the transaction removes its lock after a conflict, even
// if it has found none.
func TestLatePrewriteOfAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, c, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		locked := txntest.NewFaults(t)
		held := locked.OnStep(txntest.StepCommit, txntest.Hold)
		other := commitInBackground(t.Context(), beginSet(t, env.NewClient(txn.Config{TokenTTL: -1}, locked.DialOptions()...), "1", "bob"))
		<-held.Fired()
		tx := beginSet(t, c, "2", "joe", "bob") // younger, so it does not wait
		late := faults.On("first prewrite of joe", stepOn(txntest.StepPrewrite, "joe"), txntest.Delay, 1)
		again := faults.On("later prewrites of joe", stepOn(txntest.StepPrewrite, "joe"), txntest.DropRequest, 0)
		conflict := faults.On("prewrite of bob", stepOn(txntest.StepPrewrite, "bob"), txntest.Hold, 1) // else it could end the commit first
		abort := faults.OnStep(txntest.StepAbort, txntest.Hold)
		done := commitInBackground(t.Context(), tx)
		<-again.Fired()
		conflict.Release()
		select {
		case <-abort.Fired():
		case o := <-done:
			t.Fatalf("%v; want it to remove the lock", o.err)
		}
		late.Release()
		abort.Release()
		if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
			t.Errorf("%v, want a conflict", o.err)
		}
		held.Release()
		if o := <-other; o.err != nil {
			t.Error(o.err)
		}
		wantNoLocks(t, env.Client)
	})
}
