package notify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// remove deletes the cell of a row in a column.
func remove(t *testing.T, c *txn.Client, col column, row string) {
	t.Helper()
	if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table(col.table).Delete(row, col.Family, col.Qualifier)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// collect lets an hour pass, and collects garbage four times, so that also deletes go.
func collect(t *testing.T, c *txn.Client) (deletes int64) {
	t.Helper()
	for range 4 {
		pass(15 * time.Minute)
		report, err := gc.Run(t.Context(), c, gc.Config{Retention: 10 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		deletes += report.Total.Deletes
	}
	return deletes
}

// TestPrevious: a run learns what the last acknowledged run saw, over changes that one run
// handles together, failed and dropped runs, deletes, and garbage collection. It costs one read.
func TestPrevious(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: 24 * time.Hour}, faults.DialOptions()...), notify.Config{MaxAttempts: 3})
		var mode error
		var log []string
		reads := 0
		rowReads := func() (n int) { // sweeps read ranges
			for _, c := range faults.Calls() {
				if c.Step == txntest.StepRead && c.Row != "" {
					n++
				}
			}
			return n
		}
		handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			now, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
			if err != nil {
				return err
			}
			before := rowReads()
			value, ok, err := notify.Previous(ctx, tx)
			reads = rowReads() - before
			switch {
			case errors.Is(err, txn.ErrTooOld):
				log = append(log, fmt.Sprintf("too old, now %q", now))
				return mode
			case err != nil:
				return err
			case !ok && value != nil:
				t.Errorf("an absent value %q", value)
			}
			log = append(log, fmt.Sprintf("%q (%v), now %q", value, ok, now))
			return mode
		})
		stop := start(t, w)
		want := func(what string, wantReads int, runs ...string) {
			t.Helper()
			pass(2 * time.Minute)
			if !slices.Equal(log, runs) {
				t.Errorf("%s: the observer saw %q; want %q", what, log, runs)
			}
			if reads != wantReads {
				t.Errorf("%s: %d reads for the previous value, want %d", what, reads, wantReads)
			}
			log, reads = nil, 0
		}
		put(t, env.Client, input, "r", "1")
		want("first change", 0, `"" (false), now "1"`)
		put(t, env.Client, input, "r", "")
		want("second change", 1, `"1" (true), now ""`)
		mode = notify.Snooze(10 * time.Minute)
		put(t, env.Client, input, "r", "2")
		pass(2 * time.Minute)
		mode = nil
		put(t, env.Client, input, "r", "3")
		want("two changes in one run", 1, `"" (true), now "2"`, `"" (true), now "3"`)
		mode = notify.Drop()
		put(t, env.Client, input, "r", "4")
		want("dropped change", 1, `"3" (true), now "4"`)
		mode = nil
		remove(t, env.Client, input, "r")
		want("delete after a dropped change", 1, `"4" (true), now ""`)
		put(t, env.Client, input, "r", "5")
		want("value after a delete", 1, `"" (false), now "5"`)

		collect(t, env.Client)
		put(t, env.Client, input, "r", "6")
		want("change long after the last run", 1, `"5" (true), now "6"`)
		remove(t, env.Client, input, "r")
		want("delete", 1, `"6" (true), now ""`)
		if n := collect(t, env.Client); n != 1 {
			t.Fatalf("garbage collection removed %d newest deletes, want 1", n)
		}
		put(t, env.Client, input, "r", "7")
		want("value after a collected delete", 1, `"" (false), now "7"`)

		// The worker is down for longer than versions are kept.
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		put(t, env.Client, input, "r", "8")
		collect(t, env.Client)
		put(t, env.Client, input, "r", "9")
		late := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{})
		handle(t, late, "o", input, func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
			_, _, err := notify.Previous(ctx, tx)
			log = append(log, fmt.Sprint(errors.Is(err, txn.ErrTooOld)))
			return nil
		})
		start(t, late)
		want("a version between two runs was collected", 0, "true")
	})
}

// TestPreviousOfOneCollectedChange: a worker is down for longer than versions are kept, but only
// one change was made meanwhile, so nothing that Previous needs was collected.
func TestPreviousOfOneCollectedChange(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		c := env.NewClient(txn.Config{TokenTTL: -1})
		var log []string
		observe := func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
			value, ok, err := notify.Previous(ctx, tx)
			log = append(log, fmt.Sprintf("%q %v %v", value, ok, errors.Is(err, txn.ErrTooOld)))
			return nil
		}
		w := newWorker(t, c, notify.Config{})
		handle(t, w, "o", input, observe)
		stop := start(t, w)
		put(t, env.Client, input, "r", "1")
		pass(2 * time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		collect(t, env.Client)
		put(t, env.Client, input, "r", "2") // above the safe point
		w = newWorker(t, c, notify.Config{})
		handle(t, w, "o", input, observe)
		start(t, w)
		pass(2 * time.Minute)
		if want := []string{`"" false false`, `"1" true false`}; !slices.Equal(log, want) {
			t.Errorf("%q, want %q", log, want)
		}
	})
}

// TestPreviousOfUnseenDelete: garbage collection keeps a delete that an observer has not seen, until
// the observer has seen it. So Previous fails, and does not say that the value was absent.
func TestPreviousOfUnseenDelete(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, what := range []string{"parked", "dropped", "replayed", "not registered"} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			register(t, env.Client, input, "o", false)
			c := env.NewClient(txn.Config{TokenTTL: -1, SchemaMaxAge: time.Minute})
			var broken error
			var log []string
			run := func() (stop func() error) {
				w := newWorker(t, c, notify.Config{MaxAttempts: 1, Finder: &notify.Scanner{MinInterval: 12 * time.Second}})
				handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
					value, ok, err := notify.Previous(ctx, tx)
					if broken == nil {
						log = append(log, fmt.Sprintf("%q %v %v", value, ok, errors.Is(err, txn.ErrTooOld)))
					}
					return broken
				})
				return start(t, w)
			}
			stop := run()
			put(t, env.Client, input, "r", "1")
			pass(2 * time.Minute)
			broken = errors.New("broken")
			if what == "not registered" {
				if err := stop(); err != nil {
					t.Fatal(err)
				}
				if _, err := changes.UnregisterObserver(t.Context(), env.Client, input.table, "o"); err != nil {
					t.Fatal(err)
				}
				pass(2 * time.Minute)
			}
			remove(t, env.Client, input, "r")
			pass(2 * time.Minute)
			broken = nil
			if n := collect(t, env.Client); n != 0 {
				t.Errorf("%s: garbage collection removed %d newest deletes", what, n)
			}
			letters := 0
			for d, err := range changes.DeadLetters(t.Context(), env.Client) {
				letters++
				switch {
				case err != nil:
					t.Fatal(err)
				case what == "dropped":
					err = changes.Drop(t.Context(), env.Client, d)
				case what == "replayed":
					err = changes.Replay(t.Context(), env.Client, d)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if want := what != "not registered"; (letters == 1) != want {
				t.Errorf("%s: %d dead letters", what, letters)
			}
			switch what {
			case "not registered":
				run()
			case "dropped":
				collect(t, env.Client)
			}
			pass(2 * time.Minute)
			if what != "replayed" {
				put(t, env.Client, input, "r", "2")
				pass(2 * time.Minute)
			}
			if want := []string{`"" false false`, `"" false true`}; !slices.Equal(log, want) {
				t.Errorf("%s: %q, want %q", what, log, want)
			}
			if n := collect(t, env.Client); what == "replayed" && n != 1 {
				t.Errorf("%s: garbage collection removed %d newest deletes once they were seen, want 1", what, n)
			}
		})
	}
}

// TestPreviousExpired: a value that has expired meanwhile counts as absent, whether garbage
// collection has removed it or not.
func TestPreviousExpired(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, collected := range []bool{false, true} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			if err := admin.SetExpiry(t.Context(), env.Client, input.table, input.Family, time.Hour); err != nil {
				t.Fatal(err)
			}
			register(t, env.Client, input, "o", false)
			w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{Finder: &notify.Scanner{MinInterval: 12 * time.Second}})
			var log []string
			handle(t, w, "o", input, func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
				value, ok, err := notify.Previous(ctx, tx)
				log = append(log, fmt.Sprintf("%q %v", value, ok))
				return err
			})
			start(t, w)
			for _, v := range []string{"1", "2", "3"} {
				put(t, env.Client, input, "r", v)
				pass(2 * time.Minute)
				if v == "2" {
					pass(time.Hour)
				}
			}
			if collected {
				for range 3 {
					if collect(t, env.Client) > 0 {
						break
					}
				}
			}
			put(t, env.Client, input, "r", "4")
			pass(2 * time.Minute)
			want := []string{`"" false`, `"1" true`, `"" false`, `"3" true`}
			if collected {
				want[3] = `"" false`
			}
			if !slices.Equal(log, want) {
				t.Errorf("collected: %v: %q, want %q", collected, log, want)
			}
		})
	}
}

// TestPreviousOutsideOfARun: there is no previous value without a run, or in a column for weak
// notifications.
func TestPreviousOutsideOfARun(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := notify.Previous(t.Context(), tx); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("outside of a run: %v", err)
		}
		tx.Rollback()
		register(t, env.Client, hot, "w", true)
		w := newWorker(t, env.Client, notify.Config{})
		seen := make(chan error, 1)
		handle(t, w, "w", hot, func(ctx context.Context, tx *txn.Txn, _ txn.Cell) error {
			_, _, err := notify.Previous(ctx, tx)
			seen <- err
			return nil
		}, notify.Weak())
		start(t, w)
		if err := notifyWeakly(t.Context(), env.Client, hot, "r", "x"); err != nil {
			t.Fatal(err)
		}
		if err := <-seen; !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("in a weak column: %v", err)
		}
	})
}
