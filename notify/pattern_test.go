package notify_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// patternOf returns a pattern of columns of table docs.
func patternOf(prefix string) column { return column{"docs", txn.Pattern("d", prefix)} }

// A runLog counts the committed runs of observers, as "OBSERVER ROW/QUALIFIER".
type runLog struct {
	mu   sync.Mutex
	runs map[string]int
}

func newRunLog() *runLog { return &runLog{runs: map[string]int{}} }

func (l *runLog) observer(id string) notify.ObserverFunc {
	return func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		if t := notify.TriggerOf(ctx); t == nil || t.Cell != cell {
			return fmt.Errorf("the trigger is %+v, the cell is %s", t, cell)
		}
		if _, _, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier); err != nil {
			return err
		}
		l.mu.Lock()
		l.runs[id+" "+cell.Row+"/"+cell.Qualifier]++
		l.mu.Unlock()
		return nil
	}
}

func (l *runLog) want(t *testing.T, what string, runs ...string) {
	t.Helper()
	want := map[string]int{}
	for _, r := range runs {
		want[r]++
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !maps.Equal(l.runs, want) {
		t.Errorf("%s: runs %v, want %v", what, l.runs, want)
	}
	clear(l.runs)
}

// putAll commits values of columns of one row in one transaction.
func putAll(t *testing.T, c *txn.Client, row string, qualifiers ...string) {
	t.Helper()
	if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for _, q := range qualifiers {
			tx.Table("docs").Set(row, "d", q, fmt.Appendf(nil, "%d", tx.StartTS()))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestPattern: each changed cell of a pattern has its own run for each observer that it matches,
// whichever worker runs that observer. Nothing is left afterwards.
func TestPattern(t *testing.T) {
	long.RacedAtNight(t)
	for _, workers := range []int{1, 4} {
		virtual(t, func(t *testing.T, env *txntest.Env) {
			log := newRunLog()
			observers := []struct {
				id string
				of column
			}{{"all", patternOf("")}, {"tags", patternOf("tag/")}, {"tags-of-a", patternOf("tag/a")}, {"one", columnOf("docs", "d", "tag/a")}}
			var all []*notify.Worker
			for i, o := range observers {
				if i < workers {
					all = append(all, newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{}))
				}
				register(t, env.Client, o.of, o.id, false)
				handle(t, all[i%workers], o.id, o.of, log.observer(o.id))
			}
			for _, w := range all {
				start(t, w)
			}
			putAll(t, env.Client, "r", "tag/a", "tag/ab", "tag/b", "title")
			putAll(t, env.Client, "s", "", "tag", "\xff")
			pass(3 * time.Minute)
			log.want(t, "changes", "all r/tag/a", "tags r/tag/a", "tags-of-a r/tag/a", "one r/tag/a", "all r/tag/ab", "tags r/tag/ab", "tags-of-a r/tag/ab",
				"all r/tag/b", "tags r/tag/b", "all r/title", "all s/", "all s/tag", "all s/\xff")
			remove(t, env.Client, columnOf("docs", "d", "tag/b"), "r")
			pass(3 * time.Minute)
			log.want(t, "a delete", "all r/tag/b", "tags r/tag/b")
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			if _, err := notify.Wait(ctx, env.Client, notify.WaitConfig{}); err != nil {
				t.Error(err)
			}
			wantLeft(t, env.Client, 0, 0)
		})
	}
}

// TestPatternPending: Wait and Observations know the observers of a cell's patterns, also those
// that no worker runs.
func TestPatternPending(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, patternOf("tag/"), "tags", false)
		putAll(t, env.Client, "r", "tag/a", "title")
		var seen []string
		for o, err := range changes.Observations(t.Context(), env.Client, "docs", nil) {
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, fmt.Sprint(o.Cell, " ", o.Observers, " ", o.Pending("tags")))
		}
		if want := []string{"docs/r/d:tag%2Fa [tags] true"}; !slices.Equal(seen, want) {
			t.Errorf("%q, want %q", seen, want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var left changes.Unfinished
		_, err := notify.Wait(ctx, env.Client, notify.WaitConfig{Progress: func(u changes.Unfinished) { left = u }})
		if !errors.Is(err, context.DeadlineExceeded) || left.Cell != cellIn(columnOf("docs", "d", "tag/a"), "r") {
			t.Errorf("Wait: %v, waiting for %v", err, left.Cell)
		}
		if _, err := changes.UnregisterObserver(t.Context(), env.Client, "docs", "tags"); err != nil {
			t.Fatal(err)
		}
		if _, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{}); err != nil {
			t.Errorf("without the observer: %v", err)
		}
		w := newWorker(t, env.Client, notify.Config{}) // of another column of the table
		handle(t, w, "other", input, newRunLog().observer("other"))
		start(t, w)
		pass(3 * time.Minute)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestPatternBackfill: Backfill notifies every cell of a pattern, in narrow and wide rows.
func TestPatternBackfill(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		var qualifiers []string
		for i := range 60 {
			qualifiers = append(qualifiers, fmt.Sprintf("tag/%04d", i))
		}
		putAll(t, env.Client, "wide", append(qualifiers, "title")...)
		putAll(t, env.Client, "narrow", "tag/a")
		register(t, env.Client, patternOf("tag/"), "tags", false)
		log := newRunLog()
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{})
		handle(t, w, "tags", patternOf("tag/"), log.observer("tags"), notify.Concurrency(1))
		start(t, w)
		pass(2 * time.Minute)
		log.want(t, "before the backfill")
		cells, err := notify.Backfill(t.Context(), env.Client, notify.BackfillConfig{Table: "docs", Column: txn.Pattern("d", "tag/")})
		if err != nil || cells != 61 {
			t.Fatalf("%d cells, %v", cells, err)
		}
		pass(10 * time.Minute)
		if len(log.runs) != 61 || log.runs["tags narrow/tag/a"] != 1 || log.runs["tags wide/tag/0059"] != 1 {
			t.Errorf("%d cells had runs", len(log.runs))
		}
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestPatternDeadLetters: a failed change of a pattern becomes a dead letter of its cell alone, and
// is replayed and dropped like one of a column.
func TestPatternDeadLetters(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, patternOf(""), "all", false)
		broken, log := true, newRunLog()
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: -1}), notify.Config{MaxAttempts: 1})
		handle(t, w, "all", patternOf(""), func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
			if broken && strings.HasPrefix(cell.Qualifier, "bad") {
				return errBroken
			}
			return log.observer("all")(ctx, tx, cell)
		})
		start(t, w)
		putAll(t, env.Client, "r", "bad/1", "bad/2", "good")
		pass(3 * time.Minute)
		log.want(t, "broken", "all r/good")
		letters := deadLetters(t, env.Client)
		if len(letters) != 2 {
			t.Fatalf("letters: %+v", letters)
		}
		broken = false
		if err := changes.Replay(t.Context(), env.Client, letters[0]); err != nil {
			t.Fatal(err)
		}
		if err := changes.Drop(t.Context(), env.Client, letters[1]); err != nil {
			t.Fatal(err)
		}
		pass(3 * time.Minute)
		log.want(t, "replayed", "all r/"+letters[0].Cell.Qualifier)
		wantLeft(t, env.Client, 0, 0)
	})
}

// TestPatternRegistration: an id has one column or pattern in a table; a pattern has no weak
// columns; two processes register at the same time; who registers again, and the last one that
// leaves, set the record's version.
func TestPatternRegistration(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		c := env.Client
		do := func(of column, id string, weak bool) error {
			return changes.RegisterObserver(t.Context(), c, of.table, of.Column, id, weak)
		}
		register(t, c, hot, "w", true)
		for what, err := range map[string]error{
			"a pattern over a weak column": do(patternOf("h"), "x", false),
			"an id of another column":      do(patternOf("tag"), "w", false),
		} {
			if !errors.Is(err, changes.ErrRegistration) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := do(patternOf("tag"), "x", true); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("a weak pattern: %v", err)
		}
		if err := do(column{"docs", txn.Pattern("none", "")}, "x", false); !errors.Is(err, txn.ErrSchema) {
			t.Errorf("a pattern of no family: %v", err)
		}
		done := make(chan error, 4)
		for i := range 4 {
			go func() { done <- do(patternOf(fmt.Sprint("tag", i%2)), fmt.Sprint("o", i), false) }()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := do(columnOf("docs", "d", "tag1/a"), "x", true); !errors.Is(err, changes.ErrRegistration) {
			t.Errorf("a weak column in a pattern: %v", err)
		}
		env.InitTable(admin.TableSpec{Name: "docs", Families: []string{"d"}, Observed: []txn.Column{hot.Column}})
		cols, err := changes.ObservedColumns(t.Context(), c, "docs")
		if err != nil || fmt.Sprint(cols) != "[{docs d*:tag0 [o0 o2] false} {docs d*:tag1 [o1 o3] false} {docs d:hot [w] true}]" {
			t.Errorf("%v, %v", cols, err)
		}
		for i := range 4 {
			if found, err := changes.UnregisterObserver(t.Context(), c, "docs", fmt.Sprint("o", i)); err != nil || !found {
				t.Errorf("removing: %v, %v", found, err)
			}
		}
	})
}
