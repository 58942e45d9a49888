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

// A slowJournal lets each read of the journal take long, divided by the number of parts that cover it.
type slowJournal struct {
	whole  time.Duration
	parts  atomic.Int64
	fail   atomic.Bool
	failed atomic.Int64
	reads  atomic.Int64
	at     atomic.Int64 // reads under way
	most   atomic.Int64 // of them
	stuck  atomic.Bool  // one read does not end until its client gives up
	held   atomic.Int64
}

func (s *slowJournal) choose(c txntest.Call) (txntest.Action, time.Duration, bool) {
	switch {
	case txntest.Classify(c.Method, c.Request).Step != txntest.StepJournalRead:
		return 0, 0, false
	case s.fail.Load():
		s.failed.Add(1)
		return txntest.Crash, 0, true
	case s.stuck.CompareAndSwap(true, false):
		s.held.Add(1)
		return txntest.Hold, time.Hour, true
	}
	s.reads.Add(1)
	took := s.whole / time.Duration(s.parts.Load())
	n := s.at.Add(1)
	s.most.Store(max(s.most.Load(), n))
	time.AfterFunc(took*9/10, func() { s.at.Add(-1) })
	return txntest.Hold, took, true
}

// fleet makes workers whose reads of the journal of table docs take long, and which know each other.
func (s *slowJournal) fleet(t *testing.T, n int, maxInterval time.Duration) (all []*journal, faults *txntest.Faults) {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("docs", "f")
	faults = txntest.ChooseFaults(s.choose)
	for range n {
		client := env.NewClient(txn.Config{RPCTimeout: 2 * s.whole}, faults.DialOptions()...)
		if err := changes.Announce(t.Context(), client, []string{"o"}); err != nil {
			t.Fatal(err)
		}
		j := newJournal(&Scanner{}, Search{Client: client, Tables: []string{"docs"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler)}, time.Second, maxInterval, 1, 2)
		if err := j.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, j)
	}
	<-time.After(workersMaxAge)
	s.parts.Store(int64(n))
	for _, j := range all { // each reads its part
		j.whole = time.Now()
		if !s.turn(t.Context(), t, j) || j.fleet.share != n || j.busy || j.cost < s.whole || j.cost > s.whole*11/10 {
			t.Fatalf("after the first turn: %d workers, busy %v, cost %v", j.fleet.share, j.busy, j.cost)
		}
	}
	s.parts.Store(int64(all[0].parts()))
	if s.parts.Load() < 8 {
		t.Fatalf("%d parts", s.parts.Load())
	}
	return all, faults
}

// turn makes a turn, and reports whether it read the journal.
func (s *slowJournal) turn(ctx context.Context, t *testing.T, j *journal) bool {
	t.Helper()
	before := j.scanner.reads.Load()
	if err := j.turn(ctx); err != nil && ctx.Err() == nil && !s.fail.Load() {
		t.Error(err)
	}
	return j.scanner.reads.Load() > before
}

// TestLongReadsTakeTurns: if a read of the journal takes long, one worker at a time reads it, two parts
// at the same time. Nobody reads it again until as much time has passed as one request after the other
// would take. A read that fails or ends early holds up nobody.
func TestLongReadsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = 20 * time.Second
		slow := &slowJournal{whole: long}
		workers, faults := slow.fleet(t, 2, time.Minute)
		a, b := workers[0], workers[1]
		slow.reads.Store(0)
		slow.most.Store(0)
		check := func(when string, ctx context.Context, j *journal, want bool) {
			t.Helper()
			if got := slow.turn(ctx, t, j); got != want {
				t.Errorf("%s: reads the journal: %v, want %v", when, got, want)
			}
		}
		done, began := make(chan bool), time.Now()
		go func() { done <- slow.turn(t.Context(), t, a) }()
		<-time.After(long / 4)
		check("while another worker reads", t.Context(), b, false)
		if !<-done {
			t.Error("the first worker did not read the journal")
		}
		if took := time.Since(began); took < long/2 || took > long*6/10 || slow.reads.Load() != slow.parts.Load() || slow.most.Load() != 2 {
			t.Errorf("the read took %v, in %d requests, at most %d at the same time", took, slow.reads.Load(), slow.most.Load())
		}
		<-time.After(time.Until(began.Add(long * 9 / 10)))
		check("soon afterwards", t.Context(), b, false)
		<-time.After(time.Until(began.Add(long * 11 / 10)))
		check("after as long as one request would take", t.Context(), b, true)
		<-time.After(long)

		ctx, cancel := context.WithTimeout(t.Context(), long/4)
		defer cancel()
		check("a worker that stops", ctx, a, true)
		check("after it has stopped", t.Context(), b, true)
		<-time.After(long)
		slow.fail.Store(true)
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		check("a read that fails", ctx, a, true)
		slow.fail.Store(false)
		check("after the failure", t.Context(), b, true)
		<-time.After(long)
		b.locks, began = silentLocks{b.locks}, time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		check("the locks do not answer", ctx, b, true)
		if took := time.Since(began); took > long+3*lockWait {
			t.Errorf("a turn took %v while the locks did not answer", took)
		}
		if slow.failed.Load() == 0 || slow.reads.Load() < 5*slow.parts.Load() {
			t.Errorf("%d reads failed, %d were slow", slow.failed.Load(), slow.reads.Load())
		}
		faults.Wait()
	})
}

// TestVeryLongReads: if one request after the other would take longer than three intervals, the next worker
// need not wait for that long.
func TestVeryLongReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const long = time.Minute
		slow := &slowJournal{whole: long}
		workers, faults := slow.fleet(t, 2, time.Minute)
		began := time.Now()
		if !slow.turn(t.Context(), t, workers[0]) {
			t.Error("the first worker did not read the journal")
		}
		<-time.After(time.Until(began.Add(35 * time.Second))) // of 3 · 12
		if slow.turn(t.Context(), t, workers[1]) {
			t.Error("another worker read the journal soon afterwards")
		}
		<-time.After(2 * time.Second)
		if !slow.turn(t.Context(), t, workers[1]) {
			t.Error("another worker waited for too long")
		}
		faults.Wait()
	})
}

// TestShortPartOfLongJournal: a worker whose own part of the journal is short, or whose read ends early,
// knows that the whole journal is long.
func TestShortPartOfLongJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowJournal{whole: 20 * time.Second}
		workers, faults := slow.fleet(t, 2, time.Minute)
		a := workers[0]
		a.busy, a.whole = true, time.Now()
		slow.parts.Store(1000)
		if !slow.turn(t.Context(), t, a) || a.cost < slow.whole {
			t.Errorf("after a read of its part: cost %v", a.cost)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if !slow.turn(ctx, t, a) || ctx.Err() == nil || a.cost < slow.whole {
			t.Errorf("after a read that ended early: cost %v", a.cost)
		}
		slow.parts.Store(int64(a.parts()))
		if !slow.turn(t.Context(), t, a) || a.cost < slow.whole || a.cost > slow.whole*11/10 {
			t.Errorf("after a read of the whole journal: cost %v", a.cost)
		}
		faults.Wait()
	})
}

// TestJournalPartDoesNotAnswer: while a read of one part of a long journal does not answer, the worker reads the others,
// and the part once more after about as long as three reads of a part take.
func TestJournalPartDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowJournal{whole: 20 * time.Second}
		workers, faults := slow.fleet(t, 2, time.Minute)
		for _, j := range workers {
			slow.reads.Store(0)
			slow.stuck.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			if !slow.turn(ctx, t, j) || ctx.Err() != nil || slow.held.Swap(0) != 1 || slow.reads.Load() != slow.parts.Load() {
				t.Errorf("%d parts were read beside one that does not answer, in %v", slow.reads.Load(), time.Since(began))
			}
			cancel()
			<-time.After(slow.whole)
		}
		faults.Wait()
	})
}

// silentLocks answer no question.
type silentLocks struct{ Locks }

func (silentLocks) Acquire(ctx context.Context, _, _ string, _ time.Duration) (bool, tso.Holder, error) {
	<-ctx.Done()
	return false, tso.Holder{}, ctx.Err()
}
