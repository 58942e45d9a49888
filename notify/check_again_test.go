package notify_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A givenFinder offers only what it is given.
type givenFinder struct {
	given chan changes.Notification
}

func newGivenFinder() *givenFinder {
	return &givenFinder{make(chan changes.Notification)}
}

func (f *givenFinder) Find(ctx context.Context, s notify.Search) error {
	for {
		select {
		case n := <-f.given:
			s.Offer(ctx, n, func() {})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestSoonestObserver: a worker checks a cell again when the first of its observers is due, in whatever order they
// run, although nothing finds the cell.
func TestSoonestObserver(t *testing.T) {
	for _, tt := range []struct{ a, b time.Duration }{{time.Hour, time.Minute}, {time.Minute, time.Hour}, {time.Minute, 0}, {0, time.Minute}} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			var all events
			w := newWorker(t, env.Client, notify.Config{Finder: newGivenFinder(), OnEvent: all.add})
			for id, d := range map[string]time.Duration{"a": tt.a, "b": tt.b} {
				handle(t, w, id, input, func(context.Context, *txn.Txn, txn.Cell) error {
					if d == 0 {
						return nil
					}
					return notify.Snooze(d)
				})
			}
			start(t, w)
			pass(time.Second)
			put(t, env.Client, input, "row", "v")
			pass(2*time.Minute + 30*time.Second)
			snoozed, _ := all.of(notify.Snoozed)
			n := map[string]int{}
			for _, e := range snoozed {
				n[e.Observer]++
			}
			for id, d := range map[string]time.Duration{"a": tt.a, "b": tt.b} {
				if want := map[time.Duration]int{0: 0, time.Minute: 3, time.Hour: 1}[d]; n[id] != want {
					t.Errorf("observers that snooze for %v and %v: %s ran %d times, want %d", tt.a, tt.b, id, n[id], want)
				}
			}
		})
	}
}

// TestPausesBetweenConflicts: runs that conflict follow each other after pauses that double, from 2 ms to 256 ms.
func TestPausesBetweenConflicts(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var all events
		w := newWorker(t, env.Client, notify.Config{Finder: newGivenFinder(), OnEvent: all.add, ConflictAttempts: 12, Backoff: txn.Backoff{Min: time.Hour, Max: time.Hour}})
		handle(t, w, "o", input, func(_ context.Context, tx *txn.Txn, cell txn.Cell) error {
			return &txn.ConflictError{Cell: cell, StartTS: tx.StartTS()}
		})
		start(t, w)
		pass(time.Second)
		put(t, env.Client, input, "row", "v")
		pass(time.Minute)
		conflicts, at := all.of(notify.Conflicted)
		if len(conflicts) != 12 {
			t.Fatalf("%d conflicts, want 12", len(conflicts))
		}
		for n := 1; n < len(at); n++ {
			if gap, most := at[n].Sub(at[n-1]), time.Millisecond<<min(n, 8); gap < most/2 || gap > most {
				t.Errorf("run %d began %v after the last one, want %v to %v", n, gap, most/2, most)
			}
		}
	})
}

// TestSweepOfADeletedTable: the next sweep of a table that was deleted begins a day later. Nothing says that the
// table is complete.
func TestSweepOfADeletedTable(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"d"}}); err != nil {
			t.Fatal(err)
		}
		c := env.NewClient(txn.Config{TokenTTL: time.Minute})
		register(t, c, input, "o", false)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}), notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		pass(10 * time.Minute)
		sweepSoon(t, c, "docs")
		if err := env.Admin.DeleteTable(t.Context(), "docs"); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all, err := changes.SweepPositions(t.Context(), c, nil, "docs")
		if err != nil || len(all) != 1 || all[0].Complete || time.Duration(all[0].DueTS-now)*time.Microsecond < 23*time.Hour {
			t.Errorf("%+v at %d, %v", all, now, err)
		}
	}, txntest.WithoutCheck(), txntest.WithoutJournal())
}

// TestQuietWorker: a worker that finds nothing, and then stops, logs no warning.
func TestQuietWorker(t *testing.T) {
	for _, scans := range []bool{true, false} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			var finder notify.Finder = &notify.Scanner{}
			if !scans {
				finder = newGivenFinder()
			}
			var logged bytes.Buffer
			w := newWorker(t, env.NewClient(txn.Config{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))}), notify.Config{Finder: finder})
			handle(t, w, "o", input, observeEffect)
			stop := start(t, w)
			put(t, env.Client, input, "row", "v")
			pass(5 * time.Minute)
			if err := stop(); err != nil || logged.Len() > 0 {
				t.Errorf("%v, logged: %s", err, &logged)
			}
		})
	}
}

// TestBackfillOfOneColumn: a backfill notifies the cells of its column, and not those of columns whose names begin
// like it. A worker counts what it removes.
func TestBackfillOfOneColumn(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		longer := columnOf("docs", "d", input.Qualifier+"2")
		for row, col := range map[string]column{"a": input, "b": longer, "c": input} {
			put(t, env.Client, col, row, "v")
		}
		w := newWorker(t, env.Client, notify.Config{})
		handle(t, w, "o", input, observeEffect)
		handle(t, w, "p", longer, observeEffect)
		start(t, w)
		pass(time.Second)
		n, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: "docs", Column: input.Column})
		if err != nil || n != 2 {
			t.Errorf("%d cells, %v; want 2", n, err)
		}
		pass(5 * time.Minute)
		if s := w.Stats(); s.Committed != 2 || s.Cleared != 2 {
			t.Errorf("%+v, want 2 runs, and 2 cells removed", s)
		}
	})
}

// TestNoHints: a worker takes hints of its own process, unless it is configured to take none.
func TestNoHints(t *testing.T) {
	for _, none := range []bool{false, true} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			w := newWorker(t, env.Client, notify.Config{Finder: newGivenFinder(), NoHints: none})
			handle(t, w, "o", input, observeEffect)
			start(t, w)
			pass(time.Second)
			put(t, env.Client, input, "row", "v")
			pass(time.Second)
			if s := w.Stats(); (s.Hinted == 0) != none || (s.Runs == 0) != none {
				t.Errorf("NoHints: %t: %+v", none, s)
			}
		})
	}
}
