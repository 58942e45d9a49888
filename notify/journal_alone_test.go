package notify

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestLongReadsTakeTurns: if a read of the journal takes long, one worker at a time reads it, and
// nobody for as long afterwards. A read that fails or ends early holds up nobody.
func TestLongReadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 10 * time.Second
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("docs", "f")
		var fail atomic.Bool
		var failed, slow atomic.Int64
		faults := txntest.ChooseFaults(func(c txntest.Call) (txntest.Action, time.Duration, bool) {
			switch {
			case txntest.Classify(c.Method, c.Request).Step != txntest.StepJournalRead:
				return 0, 0, false
			case fail.Load():
				failed.Add(1)
				return txntest.Crash, 0, true
			}
			slow.Add(1)
			return txntest.Hold, long, true
		})
		worker := func() *journal {
			client := env.NewClient(txn.Config{RPCTimeout: 2 * long}, faults.DialOptions()...)
			if err := changes.Announce(t.Context(), client, []string{"o"}); err != nil {
				t.Fatal(err)
			}
			j := newJournal(&Scanner{}, Search{Client: client, Tables: []string{"docs"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler)}, time.Second, time.Minute, 1)
			if err := j.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			return j
		}
		a, b, began := worker(), worker(), time.Time{}
		<-time.After(workersMaxAge) // until both know each other
		// turn makes a turn, and reports whether it read the journal.
		turn := func(ctx context.Context, j *journal) bool {
			before := j.scanner.reads.Load()
			if err := j.turn(ctx); err != nil && ctx.Err() == nil && !fail.Load() {
				t.Error(err)
			}
			return j.scanner.reads.Load() > before
		}
		for _, j := range []*journal{a, b} { // each reads its part
			if !turn(t.Context(), j) || j.fleet.share != 2 || j.busy || j.cost < long {
				t.Fatalf("after the first turn: %d workers, busy %v, cost %v", j.fleet.share, j.busy, j.cost)
			}
		}
		check := func(when string, ctx context.Context, j *journal, want bool) {
			t.Helper()
			if got := turn(ctx, j); got != want {
				t.Errorf("%s: reads the journal: %v, want %v", when, got, want)
			}
		}
		done := make(chan bool)
		go func() { done <- turn(t.Context(), a) }()
		<-time.After(long / 2)
		check("while another worker reads", t.Context(), b, false)
		if !<-done {
			t.Error("the first worker did not read the journal")
		}
		<-time.After(long / 2)
		check("soon afterwards", t.Context(), b, false)
		<-time.After(long)
		check("after as long", t.Context(), b, true)
		<-time.After(2 * long)

		ctx, cancel := context.WithTimeout(t.Context(), long/2)
		defer cancel()
		check("a worker that stops", ctx, a, true)
		check("after it has stopped", t.Context(), b, true)
		<-time.After(2 * long)
		fail.Store(true)
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		check("a read that fails", ctx, a, true)
		fail.Store(false)
		check("after the failure", t.Context(), b, true)
		<-time.After(2 * long)
		b.locks, began = silentLocks{b.locks}, time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		check("the lock service does not answer", ctx, b, true)
		if took := time.Since(began); took > long+3*lockWait {
			t.Errorf("a turn took %v while the lock service did not answer", took)
		}
		if failed.Load() == 0 || slow.Load() < 5 {
			t.Errorf("%d reads failed, %d were slow", failed.Load(), slow.Load())
		}
		faults.Wait()
	})
}

// silentLocks answer no question.
type silentLocks struct{ tso.Locks }

func (silentLocks) Acquire(ctx context.Context, _, _ string, _ time.Duration) (bool, tso.Holder, error) {
	<-ctx.Done()
	return false, tso.Holder{}, ctx.Err()
}
