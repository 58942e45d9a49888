package notify_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"go.uber.org/goleak"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDrain: a worker that stops waits for its current runs and begins no other.
func TestDrain(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{Concurrency: 2})
		var running atomic.Int32
		release := make(chan struct{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			running.Add(1)
			<-release
			if err := ctx.Err(); err != nil {
				return err
			}
			return observeEffect(ctx, tx, cell)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		for i := range 10 {
			put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
		}
		pass(5 * time.Second)
		if n := running.Load(); n != 2 {
			t.Fatalf("%d observers run", n)
		}
		cancel()
		pass(10 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("Run returned %v while observers ran", err)
		default:
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := running.Load(); n != 2 {
			t.Errorf("%d runs, want the 2 that were under way", n)
		}
		if got := effects(t, env.Client); len(got) != 2 {
			t.Errorf("effects %v", got)
		}
		wantLeft(t, env.Client, 8, 0) // the worker removed those of the two
		// The same worker again does the rest.
		start(t, w)
		wait(t, env.Client)
		if got := effects(t, env.Client); len(got) != 10 {
			t.Errorf("effects %v", got)
		}
	})
}

// TestDrainIsBounded: a stopping worker cancels runs after DrainTimeout, and counts no
// failure. It returns without a run that ignores its context.
func TestDrainIsBounded(t *testing.T) {
	for _, ignores := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignores its context: %v", ignores), func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				register(t, env.Client, input, "o", false)
				w := newWorker(t, env.Client, notify.Config{DrainTimeout: 20 * time.Second})
				release := make(chan struct{})
				handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
					if ignores {
						<-release
					} else {
						<-ctx.Done()
					}
					return ctx.Err()
				})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- w.Run(ctx) }()
				put(t, env.Client, input, "row", "v")
				pass(time.Second)
				cancel()
				begun := time.Now()
				err := <-done
				says := "cancelled 1 observers that were still running"
				if ignores {
					says = "cannot stop: 1 observers are still running"
				}
				if took := time.Since(begun); err == nil || !strings.Contains(err.Error(), says) || took < 20*time.Second || took > 30*time.Second {
					t.Errorf("Run returned %v after %v, want that it says %q", err, took, says)
				}
				if ignores {
					if err := w.Run(t.Context()); err == nil {
						t.Error("the worker ran again while one of its observers was still running")
					}
				}
				close(release)
				pass(time.Second)
				wantLeft(t, env.Client, 1, 0) // no attempt is counted
				if s := w.Stats(); s.Failed != 0 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// TestDrainOfCancelledObserver: an observer that waits for the application's own context returns
// its end when the worker stops. That is not the observer's failure.
func TestDrainOfCancelledObserver(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var ev events
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add})
		ctx, cancel := context.WithCancel(t.Context())
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error {
			<-ctx.Done()
			return ctx.Err()
		})
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		put(t, env.Client, input, "row", "v")
		pass(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n, s := ev.count(notify.Cancelled), w.Stats(); n != 1 || s.Failed != 0 {
			t.Errorf("%d runs were cancelled, %+v", n, s)
		}
		wantLeft(t, env.Client, 1, 0)
	})
}

// TestDrainWithStoreDown: a stopping worker does not wait for a store that does not answer.
func TestDrainWithStoreDown(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		cleared := faults.On("clear", func(c txntest.Call) bool { return c.Step == txntest.StepClear }, txntest.DropRequest, 0)
		w := newWorker(t, env.NewClient(txn.Config{RPCTimeout: 10 * time.Minute}, faults.DialOptions()...), notify.Config{DrainTimeout: 5 * time.Second})
		handle(t, w, "o", input, observeEffect)
		stop := start(t, w)
		put(t, env.Client, input, "row", "v")
		pass(5 * time.Second)
		<-cleared.Fired()
		begun := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("stopping took %v", took)
		}
		wantLeft(t, env.Client, 1, 0)
	})
}

// TestConcurrency: neither the worker nor an observer runs more at a time than
// it may, and a slow column does not delay other columns.
func TestConcurrency(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "wide", false)
		register(t, env.Client, middle, "narrow", false)
		var wide, narrow, most, mostNarrow atomic.Int32
		record := func(n int32, most *atomic.Int32) {
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					return
				}
			}
		}
		w := newWorker(t, env.Client, notify.Config{Concurrency: 5})
		observe := func(n, m *atomic.Int32) notify.ObserverFunc {
			return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
				record(n.Add(1), m)
				record(wide.Load()+narrow.Load(), &most)
				<-time.After(time.Second)
				n.Add(-1)
				return observeEffect(ctx, tx, cell)
			}
		}
		var mostWide atomic.Int32
		handle(t, w, "wide", input, observe(&wide, &mostWide))
		handle(t, w, "narrow", middle, observe(&narrow, &mostNarrow), notify.Concurrency(2))
		start(t, w)
		const rows = 30
		for i := range rows {
			put(t, env.Client, input, fmt.Sprintf("in%d", i), "v")
			put(t, env.Client, middle, fmt.Sprintf("mid%d", i), "v")
		}
		wait(t, env.Client)
		if got := effects(t, env.Client); len(got) != 2*rows {
			t.Errorf("%d effects", len(got))
		}
		if most.Load() != 5 || mostNarrow.Load() != 2 {
			t.Errorf("%d at a time, %d of the narrow one; want 5 and 2", most.Load(), mostNarrow.Load())
		}
	})
}

// TestRateLimit bounds how many runs begin in a second.
func TestRateLimit(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect, notify.RateLimit(2, 3))
		const rows = 23
		for i := range rows {
			put(t, env.Client, input, fmt.Sprintf("row%d", i), "v")
		}
		start(t, w)
		pass(5500 * time.Millisecond)
		if n := w.Stats().Runs; n < 10 || n > 15 {
			t.Errorf("%d runs in 5.5 s at 2 a second and 3 at once", n)
		}
		wait(t, env.Client)
		if got := effects(t, env.Client); len(got) != rows {
			t.Errorf("%d effects", len(got))
		}
	})
}

// TestCycle: an observer that triggers itself, and two that trigger each other,
// end in a dead letter, which names the runs that led to it.
func TestCycle(t *testing.T) {
	bump := func(to column) notify.ObserverFunc {
		return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("docs").Get(ctx, "row", to.Family, to.Qualifier)
			n, _ := strconv.Atoi(string(v))
			tx.Table("docs").Set("row", to.Family, to.Qualifier, []byte(strconv.Itoa(n+1)))
			return err
		}
	}
	for _, tt := range []struct {
		name      string
		observers map[string][2]column
		says      []string
	}{
		{"itself", map[string][2]column{"narcissus": {input, input}},
			[]string{"more than Config.MaxHops (20)", "narcissus of docs/row/d:in", "caused by narcissus of docs/row/d:in"}},
		{"each other", map[string][2]column{"ping": {input, middle}, "pong": {middle, input}},
			[]string{"ping of docs/row/d:in", "caused by pong of docs/row/d:mid", "caused by ping of docs/row/d:in"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				var ev events
				w := newWorker(t, env.Client, notify.Config{MaxHops: 20, OnEvent: ev.add})
				for id, cols := range tt.observers {
					register(t, env.Client, cols[0], id, false)
					handle(t, w, id, cols[0], bump(cols[1]))
				}
				start(t, w)
				put(t, env.Client, input, "row", "0")
				wait(t, env.Client)
				letters := deadLetters(t, env.Client)
				if len(letters) != 1 {
					t.Fatalf("letters %+v", letters)
				}
				if parked, _ := ev.of(notify.Parked); len(parked) != 1 || parked[0].Err == nil || parked[0].Err.Error() != letters[0].Error {
					t.Errorf("the events of the dead letter: %+v", parked)
				}
				for _, s := range tt.says {
					if !strings.Contains(letters[0].Error, s) {
						t.Errorf("the dead letter says %q, and not %q", letters[0].Error, s)
					}
				}
				if s := w.Stats(); s.Committed != 21 {
					t.Errorf("%d runs committed, want 21", s.Committed)
				}
				pass(time.Minute)
				wantLeft(t, env.Client, 0, 0)
			})
		})
	}
}

// TestHopsThroughRollForward: a chain whose writers die after their commit point
// is a cycle too: a client that rolls the cell forward copies the number of hops from the
// lock.
func TestHopsThroughRollForward(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		faults.On("secondaries", func(c txntest.Call) bool { return c.Step == txntest.StepSecondaries }, txntest.DropRequest, 0)
		// The worker never commits secondaries; the other client rolls forward.
		c := env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1, RPCTimeout: time.Second}, faults.DialOptions()...)
		register(t, env.Client, input, "hop", false)
		w := newWorker(t, c, notify.Config{MaxHops: 5, Finder: &notify.Scanner{MaxInterval: 2 * time.Second}})
		handle(t, w, "hop", input, func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
			n, err := strconv.Atoi(cell.Row)
			tx.Table("docs").Set(strconv.Itoa(n+1), "d", "in", []byte("v"))
			return err
		})
		start(t, w)
		put(t, env.Client, input, "0", "v")
		for range 20 {
			pass(5 * time.Second)
			for l, err := range admin.Locks(t.Context(), env.Client, "docs", nil) {
				if err == nil {
					_, err = admin.Resolve(t.Context(), env.Client, l)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		letters := deadLetters(t, env.Client)
		if len(letters) != 1 || letters[0].Cell.Row != "6" {
			t.Errorf("letters %+v", letters)
		}
	})
}

// A change of a cycle becomes a dead letter, even if Bigtable does not answer for the runs that
// led to it.
func TestCycleBesideUnansweredRow(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		register(t, env.Client, input, "hop", false)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{MaxHops: 5})
		var last atomic.Bool
		handle(t, w, "hop", input, func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
			n, err := strconv.Atoi(cell.Row)
			last.Store(n == 5)
			tx.Table("docs").Set(strconv.Itoa(n+1), "d", "in", []byte("v"))
			return err
		}, notify.Timeout(time.Minute))
		faults.On("reads of an earlier run", func(c txntest.Call) bool { return c.Step == txntest.StepRead && c.Row == "3" && last.Load() }, txntest.Crash, 0)
		start(t, w)
		put(t, env.Client, input, "0", "v")
		pass(5 * time.Minute)
		if letters := deadLetters(t, env.Client); len(letters) != 1 || !strings.Contains(letters[0].Error, "reading the runs before that failed") {
			t.Errorf("letters %+v", letters)
		}
	})
}

// TestConflictsAreReported: an observer that conflicts again and again is
// delayed, with advice, and its change never becomes a dead letter.
func TestConflictsAreReported(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		other := env.NewClient(txn.Config{TokenTTL: time.Minute})
		var ev events
		quiet := make(chan struct{})
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add, ConflictAttempts: 3, MaxAttempts: 1})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			tx.Table("docs").Set("hot", "d", "sum", []byte("v"))
			effect(tx, cell)
			select {
			case <-quiet:
			default:
				put(t, other, columnOf("docs", "d", "sum"), "hot", "blocks")
			}
			return nil
		})
		start(t, w)
		put(t, env.Client, input, "row", "v")
		pass(time.Second)
		if n := ev.count(notify.Conflicted); n != 3 {
			t.Errorf("%d conflicts, want 3 in a row", n)
		}
		found := false
		for n, err := range changes.Notifications(t.Context(), env.Client, "docs", nil) {
			if err != nil {
				t.Fatal(err)
			}
			found = strings.Contains(n.Failures["o"].Error, "weak notification") && n.Failures["o"].Attempts == 0
		}
		if !found {
			t.Error("the failure does not give the advice")
		}
		pass(2 * time.Minute)
		if n := ev.count(notify.Conflicted); n < 6 {
			t.Errorf("%d conflicts in two minutes: it is not tried again", n)
		}
		close(quiet)
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 1 || len(deadLetters(t, env.Client)) != 0 {
			t.Errorf("%d effects, %d letters", n, len(deadLetters(t, env.Client)))
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestMisuse: what is wrong is refused before anything runs.
func TestMisuse(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("docs", "d")
	if _, err := notify.NewWorker(nil, notify.Config{}); !errors.Is(err, txn.ErrInvalid) {
		t.Error(err)
	}
	for _, cfg := range []notify.Config{{Concurrency: -1}, {Queue: -1}, {MaxAttempts: -1}, {Timeout: -1}, {LockTTL: -1}, {Backoff: txn.Backoff{Min: -1}}} {
		if _, err := notify.NewWorker(env.Client, cfg); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	w := newWorker(t, env.Client, notify.Config{})
	if err := w.Run(t.Context()); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("without observers: %v", err)
	}
	handle(t, w, "o", input, observeEffect)
	if err := w.Handle("o", middle.table, middle.Column, notify.ObserverFunc(observeEffect)); !errors.Is(err, changes.ErrRegistration) {
		t.Errorf("the same id: %v", err)
	}
	if err := w.Handle("p", input.table, input.Column, notify.ObserverFunc(observeEffect), notify.Weak()); !errors.Is(err, changes.ErrRegistration) {
		t.Errorf("weak and strong: %v", err)
	}
	// Another client registered them for another column or kind.
	register(t, env.Client, middle, "o", false)
	if err := w.Run(t.Context()); !errors.Is(err, changes.ErrRegistration) || !strings.Contains(err.Error(), "d:mid") {
		t.Errorf("a contradictory registration: %v", err)
	}
	if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "o"); err != nil {
		t.Fatal(err)
	}
	register(t, env.Client, input, "weakling", true)
	if err := w.Run(t.Context()); !errors.Is(err, changes.ErrRegistration) || !strings.Contains(err.Error(), "weak notifications, by weakling") {
		t.Errorf("a column for weak notifications: %v", err)
	}
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("docs").Set("row", "d", "in", nil)
		return nil
	})
	if !errors.Is(err, txn.ErrSchema) {
		t.Errorf("a write of a column for weak notifications: %v", err)
	}
}

// TestClosedClient: a worker whose client is closed stops by itself.
func TestClosedClient(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		for _, work := range []bool{false, true} {
			c := env.NewClient(txn.Config{})
			w := newWorker(t, c, notify.Config{NoHints: true})
			handle(t, w, "o", input, observeEffect)
			done := make(chan error, 1)
			go func() { done <- w.Run(t.Context()) }()
			pass(time.Second)
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if work {
				put(t, env.Client, input, "row", "v")
			}
			begun := time.Now()
			if err := <-done; !errors.Is(err, txn.ErrClosed) || time.Since(begun) > 2*time.Minute {
				t.Errorf("Run returned %v after %v", err, time.Since(begun))
			}
			if n, err := notify.Backfill(t.Context(), c, notify.BackfillConfig{Table: input.table, Column: input.Column}); !errors.Is(err, txn.ErrClosed) || n != 0 {
				t.Errorf("Backfill: %d, %v", n, err)
			}
		}
	})
}

// TestClientClosedUnderRun: a client is closed while an observer runs and another cell waits
// for its turn. The worker stops, and does not look for the next notification first.
func TestClientClosedUnderRun(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		c := env.NewClient(txn.Config{})
		found := make(offers)
		w := newWorker(t, c, notify.Config{NoHints: true, Concurrency: 1, Finder: found})
		release := make(chan struct{})
		handle(t, w, "o", input, func(context.Context, *txn.Txn, txn.Cell) error {
			<-release
			return nil
		})
		put(t, env.Client, input, "row1", "v")
		put(t, env.Client, input, "row2", "v")
		done := make(chan error, 1)
		go func() { done <- w.Run(t.Context()) }()
		found <- offered("row1")
		found <- offered("row2")
		pass(time.Second)
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context()) }()
		pass(time.Second)
		begun := time.Now()
		close(release)
		if err := <-done; !errors.Is(err, txn.ErrClosed) || time.Since(begun) > time.Second {
			t.Errorf("Run returned %v after %v", err, time.Since(begun))
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// failingFinder fails a few times and then offers what it has.
type failingFinder struct {
	fail  int
	err   error
	calls atomic.Int32
	cell  txn.Cell
}

func (f *failingFinder) Find(ctx context.Context, s notify.Search) error {
	if int(f.calls.Add(1)) <= f.fail {
		return f.err
	}
	s.Offer(ctx, changes.Notification{Cell: f.cell}, func() {})
	<-ctx.Done()
	return ctx.Err()
}

// TestFinderErrors: the worker starts a finder that failed again. An invalid configuration
// of the finder stops the worker.
func TestFinderErrors(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		f := &failingFinder{fail: 3, err: errBroken, cell: txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}}
		w := newWorker(t, env.Client, notify.Config{Finder: f, NoHints: true})
		handle(t, w, "o", input, observeEffect)
		begun := time.Now()
		stop := start(t, w)
		wait(t, env.Client)
		if d := time.Since(begun); f.calls.Load() != 4 || d < 3*time.Second {
			t.Errorf("called %d times in %v", f.calls.Load(), d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		var logged bytes.Buffer // not that the finder starts again
		logs := env.NewClient(txn.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		for _, bad := range []*notify.Scanner{{Threads: -1}, {Pieces: -1}, {MinInterval: -1}, {MinInterval: time.Hour}} {
			w := newWorker(t, logs, notify.Config{Finder: bad})
			handle(t, w, "o", input, observeEffect)
			if err := w.Run(t.Context()); !errors.Is(err, txn.ErrInvalid) || logged.Len() > 0 {
				t.Errorf("%+v: %v, logged %s", bad, err, &logged)
			}
		}
		w = newWorker(t, logs, notify.Config{Finder: &failingFinder{fail: 1, err: txn.ErrClosed}})
		handle(t, w, "o", input, observeEffect)
		if err := w.Run(t.Context()); !errors.Is(err, txn.ErrClosed) || logged.Len() > 0 {
			t.Errorf("%v, logged %s", err, &logged)
		}
	})
}

// TestStoreDown: while Bigtable does not answer, the worker counts no failures of a change.
// Soon after that its observer runs.
func TestStoreDown(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var down atomic.Bool
		faults := txntest.NewFaults(t)
		faults.On("outage", func(txntest.Call) bool { return down.Load() }, txntest.DropRequest, 0)
		w := newWorker(t, env.NewClient(txn.Config{RPCTimeout: time.Second}, faults.DialOptions()...), notify.Config{MaxAttempts: 1})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(time.Second)
		down.Store(true)
		put(t, env.Client, input, "row", "v")
		pass(10 * time.Minute)
		down.Store(false)
		begun := time.Now()
		wait(t, env.Client)
		if d := time.Since(begun); d > 2*time.Minute {
			t.Errorf("it took %v", d)
		}
		if n := effects(t, env.Client)["row"]; n != 1 || len(deadLetters(t, env.Client)) != 0 {
			t.Errorf("%d effects, %d letters", n, len(deadLetters(t, env.Client)))
		}
	})
}

// TestAnnounced: a worker is listed with its observers while it runs.
func TestAnnounced(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		listed := func() (ids []string) {
			workers, err := admin.Workers(t.Context(), env.Client)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range workers {
				ids = append(ids, w.Observers...)
			}
			return ids
		}
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, w, "b", middle, observeEffect)
		handle(t, w, "a", input, observeEffect)
		stop := start(t, w)
		for range 2 {
			pass(10 * time.Minute) // the token was renewed
			if got := fmt.Sprint(listed()); got != "[a b]" {
				t.Errorf("observers %v", got)
			}
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if got := listed(); len(got) != 0 {
			t.Errorf("observers %v after the worker has stopped", got)
		}
	})
}

// TestBrokenCell: a cell that cannot be read delays no other cell. The worker checks it from
// time to time, and runs its observer once it is repaired.
func TestBrokenCell(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: time.Minute}))
		env.CreateTable("docs", "d")
		env.CreateTable("effects", "e")
		register(t, env.Client, input, "o", false)
		m := bigtable.NewMutation()
		m.Set(format.NotifyFamily, ":o:d:in", 0, []byte("\xff nonsense"))
		if err := env.Bigtable.Open("docs").Apply(t.Context(), "broken", m); err != nil {
			t.Fatal(err)
		}
		var ev events
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add, Backoff: txn.Backoff{Max: time.Minute}})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		for _, row := range []string{"a", "broken", "z"} {
			put(t, env.Client, input, row, "v")
		}
		pass(10 * time.Minute)
		if got := effects(t, env.Client); got["a"] != 1 || got["z"] != 1 || got["broken"] != 0 {
			t.Errorf("effects %v", got)
		}
		if n := ev.count(notify.Unknown); n < 5 || n > 50 {
			t.Errorf("%d checks of the broken cell in ten minutes", n)
		}
		if err := changes.ClearNotifications(t.Context(), env.Client, changes.Cleared{Cell: txn.Cell{Table: "docs", Row: "broken", Family: "d", Qualifier: "in"}, Failures: []string{"o"}}); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if got := effects(t, env.Client); got["broken"] != 1 {
			t.Errorf("effects %v", got)
		}
	})
}
