package emulator_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/admin"
)

// Rows of several transactions with the same key shared one deadline, so that a
// row written often was never given up; closed by rowMutation.deadline (table.go).
func TestBackgroundDeadlinesAreTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newRegression(t, txn.Config{TokenTTL: -1, BackgroundTimeout: 5 * time.Second, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.DropRequest, 0)
		for i := range 10 {
			mustSet(t, a, "3", fmt.Sprint("p", i), "s")
			pass(2 * time.Second)
		}
		// Three commits are younger than five seconds, of two changes each.
		if s := a.Stats(); s.BackgroundCells > 6 || s.BackgroundDropped < 7 {
			t.Errorf("%d changes queued, %d rows given up; the oldest were to be given up after 5s", s.BackgroundCells, s.BackgroundDropped)
		}
		pass(6 * time.Second)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 10 {
			t.Errorf("%d changes queued, %d rows given up; want 0 and 10", s.BackgroundCells, s.BackgroundDropped)
		}
	})
}

// Rows were sent after their deadline, by a request under way at it and from
// the queue behind such a request; closed by try and drop (background.go).
func TestBackgroundSendsNothingLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 1500 * time.Millisecond // less than one request may take
		var mu sync.Mutex
		committed := map[string]time.Time{}
		sent := 0
		watch := intercept(func(c txntest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if r, ok := c.Request.(*btpb.MutateRowsRequest); ok && c.Step == txntest.StepSecondaries {
				sent++
				for _, e := range r.Entries {
					if d := time.Since(committed[string(e.RowKey)]); d > timeout {
						t.Errorf("row %s was sent %v after its commit", e.RowKey, d)
					}
				}
			}
			return nil
		})
		_, a, faults := newRegression(t, txn.Config{TokenTTL: -1, BackgroundTimeout: timeout}, watch...)
		commit := func(primary, secondary string) {
			mustSet(t, a, "3", primary, secondary)
			mu.Lock()
			defer mu.Unlock()
			committed[secondary] = time.Now()
		}
		hung := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		commit("p1", "s1")
		<-hung.Fired()
		commit("p2", "s2") // queued behind it, with the same deadline
		pass(time.Second)
		commit("p3", "s3") // with a second more
		pass(15 * time.Second)
		hung.Release()
		pass(time.Minute)
		if s := a.Stats(); s.BackgroundCells != 0 || s.BackgroundDropped != 2 || sent != 1 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want s1 and s2 given up and s3 sent", s.BackgroundCells, s.BackgroundDropped, sent)
		}
	})
}

// Rows whose request failed for good in the Bigtable client, after its own
// retries, have to be sent again (send, background.go).
func TestBackgroundSendsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.Crash, 2)
		mustSet(t, a, "3", "bob", "joe", "sue")
		pass(10 * time.Second)
		wantNoLocks(t, env.Client)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 0 || n != 3 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want the third to succeed", s.BackgroundCells, s.BackgroundDropped, n)
		}
	})
}

// A goroutine that has sent rows again pauses before it looks for more. It is none of
// the work that Close waits for, and ends with it (close, background.go). synctest
// fails the test where it does not.
func TestCloseEndsPausingSenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newRegression(t, txn.Config{TokenTTL: -1})
		faults.On("secondaries", step(txntest.StepSecondaries), txntest.Crash, 2)
		mustSet(t, a, "3", "bob", "joe", "sue")
		for a.Stats().BackgroundCells > 0 {
			pass(100 * time.Microsecond) // less than a pause
		}
		if n := faults.Count()[txntest.StepSecondaries]; n != 3 {
			t.Errorf("%d requests, want the third to succeed", n)
		}
		before := time.Now()
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if d := time.Since(before); d > 0 {
			t.Errorf("Close waited %v", d)
		}
	})
}

// Background work that Bigtable refuses for good is given up at once
// (permanent, in drop, background.go).
func TestBackgroundGivesUpWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1}, refuse(step(txntest.StepSecondaries))...)
		mustSet(t, a, "3", "bob", "joe")
		pass(10 * time.Second)
		if s, n := a.Stats(), faults.Count()[txntest.StepSecondaries]; s.BackgroundCells != 0 || s.BackgroundDropped != 1 || n != 1 {
			t.Errorf("%d changes queued, %d rows given up, %d requests; want one request", s.BackgroundCells, s.BackgroundDropped, n)
		}
		wantValue(t, takeSnapshot(t, env.Client), "joe", "3") // whoever meets the lock
	})
}

// The queue was bounded in rows, whatever their size; closed by counting
// bytes (BackgroundBytes), names and messages included. A commit that finds no room commits its
// secondaries itself.
func TestBackgroundIsBoundedInCells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newRegression(t, txn.Config{TokenTTL: -1, BackgroundBytes: 15_000})
		hung := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		for i := range 2 {
			tx := beginSet(t, a, "3", fmt.Sprint("p", i))
			for q := range 20 {
				tx.Table("a").Set(fmt.Sprint("s", i), "f", fmt.Sprint("q", q), []byte("3"))
			}
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := a.Stats().BackgroundCells; got != 40 {
				t.Errorf("after commit %d, %d changes are queued, want 40", i, got)
			}
			<-hung.Fired() // by the first commit's, before the second sends its own
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil || l.Cell.Row != "s0" {
				t.Errorf("lock on %s, %v; the second commit was to clear its own", l.Cell, err)
			}
		}
		hung.Release()
		synctest.Wait()
		wantNoLocks(t, env.Client)
	})
}
