package notify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func observeBroken(context.Context, *txn.Txn, txn.Cell) error { return errBroken }

// TestBackoffAcrossWorkers: four workers share one failing change. Together they run it as
// often as one worker would, because the pause and the number of attempts are stored.
func TestBackoffAcrossWorkers(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	virtual(t, func(t *testing.T, env *txntest.Env) {
		const attempts = 6
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		var ev events
		for range 4 {
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{
				OnEvent: ev.add, MaxAttempts: attempts, Backoff: txn.Backoff{Min: time.Second, Max: time.Minute},
				Finder: &notify.Scanner{MinInterval: 10 * time.Millisecond, MaxInterval: 100 * time.Millisecond},
			})
			// Not at the same time: this is about what is stored.
			handle(t, w, "o", input, observeBroken)
			start(t, w)
			pass(10 * time.Millisecond)
		}
		pass(time.Minute) // the pauses take 31 s at most
		failed, at := ev.of(notify.Failed)
		parked, _ := ev.of(notify.Parked)
		if len(parked) != 1 {
			t.Errorf("parked %d times", len(parked))
		}
		// Two may run at the same moment, when the pause has ended.
		if n := len(failed); n < attempts-1 || n > 2*attempts {
			t.Errorf("%d failed runs of %d attempts", n, attempts)
		}
		if len(parked) > 0 && !errors.Is(parked[0].Err, errBroken) {
			t.Errorf("parked because of %v", parked[0].Err)
		}
		// Pauses of 1, 2, 4, 8 and 16 s, of each a half at least.
		if _, end := ev.of(notify.Parked); len(end) > 0 && end[0].Sub(at[0]) < 15*time.Second {
			t.Errorf("parked %v after the first run", end[0].Sub(at[0]))
		}
		letters := deadLetters(t, env.Client)
		if len(letters) != 1 {
			t.Fatalf("%d dead letters", len(letters))
		}
		d := letters[0]
		if d.Attempts != attempts || d.Observer != "o" || d.Cell.Row != "row" || d.Error != errBroken.Error() || d.ParkedTS <= d.FirstTS {
			t.Errorf("dead letter %+v", d)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestFailureIsKnownElsewhere: a worker that starts during a pause does not run the
// observer before the pause has ended.
func TestFailureIsKnownElsewhere(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		cfg := notify.Config{Backoff: txn.Backoff{Min: 10 * time.Minute, Max: 10 * time.Minute}}
		first := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), cfg)
		handle(t, first, "o", input, observeBroken)
		stop := start(t, first)
		pass(time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		var ev events
		cfg.OnEvent = ev.add
		client := env.NewClient(txn.Config{TokenTTL: time.Minute})
		second := newWorker(t, client, cfg)
		handle(t, second, "o", input, observeEffect)
		start(t, second)
		begun := time.Now()
		pass(4 * time.Minute)
		if s := second.Stats(); s.Runs != 0 || s.Found > 2 {
			t.Errorf("%d runs and %d checks within the pause", s.Runs, s.Found)
		}
		// A hint does not end the pause either.
		if err := changes.Notify(t.Context(), client, txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if s := second.Stats(); s.Runs != 0 || s.Hinted == 0 {
			t.Errorf("after a hint within the pause: %+v", s)
		}
		wait(t, env.Client)
		if d := time.Since(begun); d < 5*time.Minute-time.Second || d > 11*time.Minute {
			t.Errorf("it ran after %v", d)
		}
		if n := first.Stats().Failed; n != 1 {
			t.Errorf("the first worker ran it %d times", n)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestNewerChangeCountsItsOwnAttempts: a change that comes while an older one waits for its
// pause is run at once, and counts its own attempts.
func TestNewerChangeCountsItsOwnAttempts(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var mu sync.Mutex
		var seen []int
		runs := func() []int {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(seen)
		}
		w := newWorker(t, env.Client, notify.Config{MaxAttempts: 3, Backoff: txn.Backoff{Min: time.Minute, Max: time.Minute}})
		handle(t, w, "o", input, func(ctx context.Context, _ *txn.Txn, _ txn.Cell) error {
			o := notify.TriggerOf(ctx)
			n := 0
			if f, ok := o.Failures["o"]; ok && f.ChangeTS == o.ChangeTS {
				n = f.Attempts
			}
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, n)
			return errBroken
		})
		start(t, w)
		put(t, env.Client, input, "row", "1")
		pass(time.Second)
		put(t, env.Client, input, "row", "2")
		pass(time.Second)
		if got, want := fmt.Sprint(runs()), "[0 0]"; got != want {
			t.Errorf("attempts before each run %v, want %v", got, want)
		}
		pass(5 * time.Minute)
		if got, want := fmt.Sprint(runs()), "[0 0 1 2]"; got != want {
			t.Errorf("attempts before each run %v, want %v", got, want)
		}
		if d := deadLetters(t, env.Client); len(d) != 1 || d[0].Attempts != 3 {
			t.Errorf("dead letters %+v", d)
		}
		// The dead letter does not prevent the run of a newer change.
		wait(t, env.Client)
		put(t, env.Client, input, "row", "3")
		pass(time.Second)
		if len(runs()) != 5 {
			t.Errorf("runs %v", runs())
		}
	})
}

// TestReplay: a replayed change runs again. If it fails at once, it leaves another dead
// letter, although Replay removes the first one only after that run.
func TestReplay(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		operator := env.NewClient(txn.Config{}, faults.DialOptions()...)
		var broken atomic.Bool
		broken.Store(true)
		w := newWorker(t, env.Client, notify.Config{MaxAttempts: 1, Finder: &notify.Scanner{MaxInterval: 2 * time.Second}})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			if broken.Load() {
				return errBroken
			}
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		put(t, env.Client, input, "row", "v")
		pass(time.Second)
		letters := deadLetters(t, env.Client)
		if len(letters) != 1 {
			t.Fatalf("letters %+v", letters)
		}
		// The removal arrives after the run has failed again.
		held := faults.OnStep(txntest.StepDeadLetter, txntest.Hold)
		done := make(chan error, 1)
		go func() { done <- changes.Replay(t.Context(), operator, letters[0]) }()
		<-held.Fired()
		pass(10 * time.Second)
		if s := w.Stats(); s.Parked != 2 {
			t.Errorf("the replay did not run before its letter was removed: %+v", s)
		}
		held.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		again := deadLetters(t, env.Client)
		if len(again) != 1 || again[0].ParkedTS <= letters[0].ParkedTS {
			t.Fatalf("letters after the second failure %+v", again)
		}
		broken.Store(false)
		if err := changes.Replay(t.Context(), operator, again[0]); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
		// To replay a letter whose change was acknowledged since is harmless.
		if err := changes.Replay(t.Context(), operator, again[0]); err != nil {
			t.Fatal(err)
		}
		wait(t, env.Client)
		pass(time.Minute)
		if n := effects(t, env.Client)["row"]; n != 1 || len(deadLetters(t, env.Client)) != 0 {
			t.Errorf("%d effects, %d letters", n, len(deadLetters(t, env.Client)))
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestParkedStaysParked: a worker that queued the cell before another worker parked its
// change does not run it again.
func TestParkedStaysParked(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		cell := txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}
		f := &manualFinder{offer: make(chan changes.Notification)}
		late := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{Finder: f})
		handle(t, late, "o", input, observeBroken)
		start(t, late)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{MaxAttempts: 1})
		handle(t, w, "o", input, observeBroken)
		start(t, w)
		pass(5 * time.Second)
		if n := len(deadLetters(t, env.Client)); n != 1 {
			t.Fatalf("%d letters", n)
		}
		f.offer <- changes.Notification{Cell: cell}
		pass(time.Minute)
		if s := late.Stats(); s.Runs != 0 || s.Acknowledged == 0 {
			t.Errorf("a dead letter was run again: %+v", s)
		}
	})
}

// manualFinder offers what a test sends it.
type manualFinder struct{ offer chan changes.Notification }

func (f *manualFinder) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case n := <-f.offer:
			s.Offer(ctx, n, func() {})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestParkedBesideAnotherObserver: of two observers of a column, one always fails. The
// other one runs, and no notification stays in the table.
func TestParkedBesideAnotherObserver(t *testing.T) {
	for _, first := range []string{"a", "z"} { // before and after the other one
		t.Run(first, func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				w := newWorker(t, env.Client, notify.Config{MaxAttempts: 1})
				handle(t, w, first, input, observeBroken)
				handle(t, w, "m", input, observeEffect)
				register(t, env.Client, input, first, false)
				register(t, env.Client, input, "m", false)
				start(t, w)
				put(t, env.Client, input, "row", "v")
				wait(t, env.Client)
				pass(100 * time.Millisecond) // before another sweep
				if n := effects(t, env.Client)["row"]; n != 1 {
					t.Errorf("%d effects", n)
				}
				if d := deadLetters(t, env.Client); len(d) != 1 || d[0].Observer != first {
					t.Errorf("letters %+v", d)
				}
				wantLeft(t, env.Client, 0, 0)
			})
		})
	}
}

// TestParkedElsewhere: the same with a worker for each observer, of which one
// parks while the other one is slow.
func TestParkedElsewhere(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "a", false)
		register(t, env.Client, input, "b", false)
		release := make(chan struct{})
		a := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{MaxAttempts: 1})
		handle(t, a, "a", input, observeBroken)
		b := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, b, "b", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			<-release
			return observeEffect(ctx, tx, cell)
		})
		put(t, env.Client, input, "row", "v")
		start(t, b)
		pass(time.Second)
		start(t, a)
		pass(5 * time.Second)
		if n := len(deadLetters(t, env.Client)); n != 1 {
			t.Errorf("%d letters", n)
		}
		wantLeft(t, env.Client, 1, 1)
		close(release)
		pass(5 * time.Minute)
		wait(t, env.Client)
		if s := a.Stats(); s.Runs != 1 {
			t.Errorf("the parked change was run again: %+v", s)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestLeftoverFailure: a failure that is stored after the notification was
// removed, by a worker that lost the race, is removed as well.
func TestLeftoverFailure(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		pass(time.Minute)
		cell := txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := changes.SetFailure(t.Context(), env.Client, cell, "o", format.Failure{ChangeTS: 1, LastTS: now, NotBefore: now * 2}); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, env.Client, 0, 1)
		pass(5 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// TestSnooze: a snoozed change runs again when its time has come, by any worker, and no
// attempt is counted.
func TestSnooze(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var times []time.Time
		w := newWorker(t, env.Client, notify.Config{MaxAttempts: 1})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			times = append(times, time.Now())
			if len(times) < 4 {
				tx.Table("docs").Set(cell.Row, "d", "out", []byte("never committed"))
				return fmt.Errorf("not now: %w", notify.Snooze(time.Minute))
			}
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		if len(times) != 4 {
			t.Fatalf("%d runs", len(times))
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < time.Minute || d > 2*time.Minute {
				t.Errorf("run %d came %v after the last", i+1, d)
			}
		}
		if v := value(t, env.Client, output, "row"); v != "" {
			t.Errorf("a snoozed run wrote %q", v)
		}
		if s := w.Stats(); s.Snoozed != 3 || s.Failed != 0 || s.Parked != 0 {
			t.Errorf("%+v", s)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestDrop: a dropped change is acknowledged without effect. A change that arrives between
// the run and the acknowledgment of the drop is not lost.
func TestDrop(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		other := env.NewClient(txn.Config{TokenTTL: time.Minute})
		var once sync.Once
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			v, _, err := tx.Table("docs").Get(ctx, cell.Row, "d", "in")
			if err != nil {
				return err
			}
			if string(v) != "good" {
				once.Do(func() { put(t, other, input, "row", "good") })
				tx.Table("docs").Set(cell.Row, "d", "out", []byte("bad"))
				return fmt.Errorf("unwanted: %w", notify.Drop())
			}
			tx.Table("docs").Set(cell.Row, "d", "out", v)
			return nil
		})
		start(t, w)
		put(t, env.Client, input, "row", "bad")
		wait(t, env.Client)
		if v := value(t, env.Client, output, "row"); v != "good" {
			t.Errorf("the newer change had the effect %q", v)
		}
		if s := w.Stats(); s.Dropped != 1 || s.Committed != 1 {
			t.Errorf("%+v", s)
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestDropBesideAnotherObserver: a dropped change stays dropped while another observer of the
// same cell still fails, and its notification stays.
func TestDropBesideAnotherObserver(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "drops", false)
		register(t, env.Client, input, "fails", false)
		w := newWorker(t, env.Client, notify.Config{})
		var drops, fails atomic.Int32
		handle(t, w, "drops", input, func(context.Context, *txn.Txn, txn.Cell) error {
			drops.Add(1)
			return notify.Drop()
		})
		handle(t, w, "fails", input, func(context.Context, *txn.Txn, txn.Cell) error {
			if fails.Add(1) < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		start(t, w)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		if drops.Load() != 1 || fails.Load() != 4 {
			t.Errorf("%d runs of the observer that drops, %d of the one that fails; want 1 and 4", drops.Load(), fails.Load())
		}
		pass(time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestDropOfRemovedObserver: an observer drops an older change after another worker has run
// it for a newer one, and after it was removed. What it has acknowledged stays, so it does
// not run again once it is registered again.
func TestDropOfRemovedObserver(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		entered, drop := make(chan struct{}), make(chan struct{})
		slow := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, slow, "o", input, func(context.Context, *txn.Txn, txn.Cell) error {
			close(entered)
			<-drop
			return notify.Drop()
		})
		put(t, env.Client, input, "row", "1")
		stop := start(t, slow)
		<-entered
		put(t, env.Client, input, "row", "2")
		other := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, other, "o", input, observeEffect)
		start(t, other)
		wait(t, env.Client)
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, input.table, "o"); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute) // longer than SchemaMaxAge
		close(drop)
		pass(time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		register(t, env.Client, input, "o", false)
		pass(2 * time.Minute)
		if _, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: input.table, Column: input.Column}); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects of the newest change, want 1", n)
		}
	})
}

// TestPanic: a panic is an error of its run, with a stack in the log. The worker continues.
func TestPanic(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var ev events
		n := 0
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add, Concurrency: 1})
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			if n++; n == 1 {
				panic("out of cheese")
			}
			return observeEffect(ctx, tx, cell)
		})
		start(t, w)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		failed, _ := ev.of(notify.Failed)
		var p *notify.PanicError
		if len(failed) != 1 || !errors.As(failed[0].Err, &p) || !strings.Contains(p.Error(), "out of cheese") || !strings.Contains(string(p.Stack), "TestPanic") {
			t.Errorf("failed runs %+v", failed)
		}
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// TestTimeout: a run that takes too long is an attempt that failed.
func TestTimeout(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		var ev events
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add})
		handle(t, w, "o", input, func(ctx context.Context, _ *txn.Txn, _ txn.Cell) error {
			<-ctx.Done()
			return ctx.Err()
		}, notify.Timeout(30*time.Second), notify.MaxAttempts(2))
		start(t, w)
		begun := time.Now()
		put(t, env.Client, input, "row", "v")
		pass(2 * time.Minute)
		_, at := ev.of(notify.Parked)
		if len(at) != 1 || at[0].Sub(begun) < time.Minute {
			t.Errorf("parked at %v, begun at %v", at, begun)
		}
		if d := deadLetters(t, env.Client); len(d) != 1 || !strings.Contains(d[0].Error, "deadline exceeded") {
			t.Errorf("letters %+v", d)
		}
	})
}

// TestFailureBeforeAnyTimestamp: a worker whose client has no timestamp yet does not know
// if a pause has ended, and checks the cell.
func TestFailureBeforeAnyTimestamp(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		put(t, env.Client, input, "row", "v")
		cell := txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}
		now, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := changes.SetFailure(t.Context(), env.Client, cell, "o", format.Failure{ChangeTS: 1, LastTS: now, NotBefore: now}); err != nil {
			t.Fatal(err)
		}
		f := &manualFinder{offer: make(chan changes.Notification)}
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{Finder: f})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		for n, err := range changes.Notifications(t.Context(), env.Client, "docs", nil) {
			if err != nil {
				t.Fatal(err)
			}
			f.offer <- n
		}
		pass(time.Second)
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// TestUnknownOutcomeIsSettled: the answer to a run's commit is lost. The worker finds the commit,
// and counts no failure.
func TestUnknownOutcomeIsSettled(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		commit := faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		ev := &events{}
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{OnEvent: ev.add})
		handle(t, w, "o", input, observeEffect, notify.Timeout(5*time.Second))
		start(t, w)
		put(t, env.Client, input, "row", "v")
		<-commit.Fired()
		wait(t, env.Client)
		pass(time.Minute)
		committed, _ := ev.of(notify.Committed)
		if len(committed) != 1 || committed[0].CommitTS == 0 || ev.count(notify.Failed) > 0 || ev.count(notify.Unknown) > 0 {
			t.Errorf("committed %+v, %d failed, %d unknown", committed, ev.count(notify.Failed), ev.count(notify.Unknown))
		}
		if n := effects(t, env.Client)["row"]; n != 1 {
			t.Errorf("%d effects", n)
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// An observer made another transaction with an unknown outcome. Once the worker had settled
// that one, it counted the observer's run as committed, and the change was lost. Fixed by
// comparing start timestamps (classify, run.go).
func TestUndeterminedInsideAnObserver(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		faults := txntest.NewFaults(t)
		faults.OnStep(txntest.StepCommit, txntest.HoldResponse)
		other := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		ev := &events{}
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add})
		runs := 0
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			effect(tx, cell)
			if runs++; runs > 1 {
				return nil
			}
			nested, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := other.Update(nested, func(_ context.Context, tx *txn.Txn) error {
				tx.Table("effects").Set("log", "e", "y", nil)
				return nil
			})
			if !errors.Is(err, txn.ErrUndetermined) {
				t.Errorf("the nested transaction: %v", err)
			}
			return err
		})
		start(t, w)
		pass(time.Second)
		put(t, env.Client, input, "row", "v")
		pass(10 * time.Minute)
		if n := effects(t, env.Client)["row"]; n != 1 || runs != 2 {
			t.Errorf("%d effects of %d runs, want one of the second", n, runs)
		}
		if n := ev.count(notify.Committed); n != 1 {
			t.Errorf("%d runs were reported as committed", n)
		}
	})
}

// An observer made another transaction, which always conflicted. The worker retried at once
// and without limit, as if the run itself had conflicted. Fixed by comparing start
// timestamps (classify, run.go).
func TestConflictInsideAnObserver(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		ev := &events{}
		w := newWorker(t, env.Client, notify.Config{OnEvent: ev.add, MaxAttempts: 3})
		z := columnOf("effects", "e", "z")
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			one, err := env.Client.Begin(ctx)
			if err != nil {
				return err
			}
			one.Table("effects").Set("log", "e", "z", nil)
			put(t, env.Client, z, "log", "z")
			_, err = one.Commit(ctx)
			return err
		})
		start(t, w)
		pass(time.Second)
		put(t, env.Client, input, "row", "v")
		pass(time.Hour)
		if f, p := ev.count(notify.Failed), ev.count(notify.Parked); ev.count(notify.Conflicted) > 0 || f+p < 3 || f+p > 4 || p != 1 {
			t.Errorf("%d runs conflicted, %d failed, %d parked; want three failures, and then a dead letter", ev.count(notify.Conflicted), f, p)
		}
	})
}
