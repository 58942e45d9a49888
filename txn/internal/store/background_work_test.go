package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/settled"
)

// A lateTable answers each ApplyBulk when the test says so: with an error for the request, or for rows.
type lateTable struct {
	bigtable.TableAPI
	mu      sync.Mutex
	waiting []chan func(rows []string) ([]error, error)
	sent    []string // the rows of each request, and when its context ends
}

func (l *lateTable) OpenTable(string) bigtable.TableAPI { return l }

func (l *lateTable) ApplyBulk(ctx context.Context, rows []string, _ []*bigtable.Mutation, _ ...bigtable.ApplyOption) ([]error, error) {
	answer := make(chan func([]string) ([]error, error), 1)
	l.mu.Lock()
	d, _ := ctx.Deadline()
	l.sent = append(l.sent, fmt.Sprintf("%s in %v", strings.Join(rows, ""), time.Until(d).Round(time.Millisecond)))
	l.waiting = append(l.waiting, answer)
	l.mu.Unlock()
	select {
	case f := <-answer:
		return f(rows)
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting = slices.DeleteFunc(l.waiting, func(c chan func([]string) ([]error, error)) bool { return c == answer })
		return nil, ctx.Err()
	}
}

// answer answers the oldest request that waits: with err, only for the rows that only names if it is
// not empty.
func (l *lateTable) answer(err error, only string) {
	pauses()
	l.mu.Lock()
	first := l.waiting[0]
	l.waiting = l.waiting[1:]
	l.mu.Unlock()
	first <- func(rows []string) ([]error, error) {
		if only == "" {
			return nil, err
		}
		errs := make([]error, len(rows))
		for i, r := range rows {
			if strings.Contains(only, r) {
				errs[i] = err
			}
		}
		return errs, nil
	}
	pauses()
}

// pauses waits for the pause before the next try of what failed.
func pauses() {
	<-time.After(100)
	synctest.Wait()
}

func (l *lateTable) requests() string {
	pauses()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Join(l.sent, ", ")
	l.sent = nil
	return all
}

// background runs f with a client whose requests wait.
func background(t *testing.T, cfg Config, f func(t *testing.T, l *lateTable, s *Store, table *Table)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lateTable{}
		if cfg.Backoff.Min == 0 {
			cfg.Backoff = Backoff{1, 1}
		}
		s, err := NewRequests(l, cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.Metadata = s.NewTable("metadata")
		s.Background, s.SafePoint = newBackground(s), &SafePoint{store: s}
		s.SafePoint.View.Store(newSafePointView(5, time.Now()))
		f(t, l, s, s.NewTable("t"))
	})
}

// mutations returns one for each letter, of the transaction that started at ts. Each has 2 changes.
func mutations(ts tso.Timestamp, rows string) (all []RowMutation) {
	for _, r := range rows {
		all = append(all, RowMutation{Row: string(r), Mut: bigtable.NewMutation(), Ops: 2, StartTS: ts, Hints: []format.Cell{{Row: string(r)}}})
	}
	return all
}

// TestBackgroundBatches: rows that arrive while a request is under way form the next one. Rows that fail
// go alone, with those of their own transaction, until their time has ended.
func TestBackgroundBatches(t *testing.T) {
	background(t, Config{BackgroundTimeout: 5 * time.Second}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		b := s.Background
		var hints string
		defer s.Hints.Watch(func(c format.Cell) bool { hints += c.Row; return true })()
		expect := func(what, requests string, cells int, hinted string) {
			t.Helper()
			sent := strings.Split(l.requests(), ", ")
			slices.Sort(sent) // those of one moment come in any order
			got := strings.Join(sent, ", ")
			queued, bytes := b.Queued()
			if _, size := sizeOf(mutations(1, "a")); got != requests || queued != cells || bytes != cells/2*size || hints != hinted {
				t.Errorf("%s: requests %q, want %q; %d changes and %d bytes wait, hints %q", what, got, requests, queued, bytes, hints)
			}
			hints = ""
		}
		add := func(ts tso.Timestamp, rows string) {
			t.Helper()
			if !b.Add(table, mutations(ts, rows)) {
				t.Errorf("no room for %s", rows)
			}
		}
		add(10, "ab")
		expect("two rows", "ab in 2s", 4, "")
		add(11, "c")
		add(12, "de")
		expect("more rows", "", 10, "")
		<-time.After(time.Second)
		l.answer(nil, "")
		expect("the first answer", "cde in 2s", 6, "ab")
		l.answer(lost, "d")
		expect("one row fails", "d in 4s", 2, "ce")
		<-time.After(time.Second)
		l.answer(lost, "")
		expect("and fails again", "d in 3s", 2, "")
		add(13, "f")
		expect("another row", "f in 2s", 4, "")
		<-time.After(3 * time.Second)
		expect("until its time has ended", "f in 3s", 2, "")
		l.answer(nil, "")
		expect("nothing is left", "", 0, "f")
		if n, m := s.Counters.BackgroundRequests.Load(), s.Counters.BackgroundDropped.Load(); n != 6 || m != 1 {
			t.Errorf("%d requests, %d dropped", n, m)
		}
		// A request that two transactions share fails for good: each of them is tried alone.
		add(20, "a")
		l.requests()
		add(21, "b")
		add(22, "c")
		l.answer(nil, "")
		l.requests()
		hints = ""
		l.answer(denied, "")
		expect("a shared request is denied", "b in 5s, c in 5s", 4, "")
		l.answer(denied, "")
		l.answer(nil, "")
		got, dropped := l.requests(), s.Counters.BackgroundDropped.Load()
		if cells, _ := b.Queued(); got != "" || cells != 0 || dropped != 2 || len(hints) != 1 {
			t.Errorf("one of them is denied alone: requests %q, %d dropped, hints %q, %d left", got, dropped, hints, cells)
		}
		hints = ""
		// A transaction below the safe point is not sent, and not tried again.
		add(5, "x")
		expect("too old", "", 0, "")
		if n := s.Counters.BackgroundDropped.Load(); n != 3 {
			t.Errorf("%d dropped", n)
		}
		if err := b.close(t.Context()); err != nil {
			t.Error(err)
		}
		if b.Add(table, mutations(30, "a")) || b.Run(func(context.Context) {}) {
			t.Error("work begins after the end")
		}
	})
}

// TestBackgroundRetriesApart: rows that failed go in requests of their own, up to a bound, and do not
// delay others.
func TestBackgroundRetriesApart(t *testing.T) {
	background(t, Config{}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		for i := range maxTasks + 4 {
			s.Background.Add(table, mutations(tso.Timestamp(100+i), string(rune('a'+i))))
			pauses()
		}
		l.answer(nil, "")
		l.answer(lost, "")
		sent := strings.Split(l.requests(), ", ")
		if len(sent) != 2+maxTasks || !strings.HasPrefix(sent[1], "bcdefghijklmnopqrst in") {
			t.Errorf("%d requests: %q", len(sent), sent)
		}
		if n := len(slices.DeleteFunc(sent, func(r string) bool { return len(strings.Fields(r)[0]) != 1 })); n != 1+maxTasks {
			t.Errorf("%d requests of one row", n)
		}
		s.Background.Add(table, mutations(500, "z"))
		if got := l.requests(); got != "z in 2s" {
			t.Errorf("a fresh row beside them: %q", got)
		}
		for range maxTasks + 1 {
			l.answer(nil, "")
		}
		for range maxTasks + 4 - 1 - maxTasks {
			l.answer(nil, "")
		}
		if cells, bytes := s.Background.Queued(); cells != 0 || bytes != 0 {
			t.Errorf("%d changes, %d bytes are left", cells, bytes)
		}
		if err := s.Background.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestBackgroundBounds: the memory of the queue and the number of tasks are bounded. An empty queue takes
// one transaction of any size.
func TestBackgroundBounds(t *testing.T) {
	_, size := sizeOf(mutations(1, "a"))
	background(t, Config{BackgroundBytes: 3 * size}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		b := s.Background
		for _, step := range []struct {
			rows string
			want bool
		}{{"abcde", true}, {"f", false}, {"", false}} {
			if got := b.Add(table, mutations(10, step.rows)); got != step.want && step.rows != "" {
				t.Errorf("%q has room: %t", step.rows, got)
			}
		}
		synctest.Wait()
		l.answer(nil, "")
		for _, step := range []struct {
			rows string
			want bool
		}{{"a", true}, {"bc", true}, {"d", false}} {
			if got := b.Add(table, mutations(10, step.rows)); got != step.want {
				t.Errorf("%q has room: %t", step.rows, got)
			}
			pauses()
		}
		synctest.Wait()
		l.answer(nil, "")
		l.answer(nil, "")
		release := make(chan struct{})
		var left sync.WaitGroup
		for i := range maxTasks + 1 {
			left.Add(1)
			started := b.Run(func(ctx context.Context) {
				defer left.Done()
				if d, _ := ctx.Deadline(); time.Until(d) != time.Minute {
					t.Errorf("a task has %v", time.Until(d))
				}
				<-release
			})
			if !started {
				left.Done()
			}
			if started != (i < maxTasks) {
				t.Errorf("task %d started: %t", i, started)
			}
		}
		close(release)
		left.Wait()
		synctest.Wait()
		done := false
		if !b.Run(func(context.Context) { done = true }) {
			t.Error("no task starts any more")
		}
		synctest.Wait()
		if !done || b.tasks != 0 || len(b.cancels) != 0 {
			t.Errorf("done %t, %d tasks, %d contexts", done, b.tasks, len(b.cancels))
		}
		if err := b.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestBackgroundCloses: the end of a client waits for background work, and gives up with its context.
func TestBackgroundCloses(t *testing.T) {
	for _, kind := range []string{"row", "task", "failed row"} {
		background(t, Config{}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
			b := s.Background
			b.Run(func(context.Context) {}) // it does not end with the first work
			pauses()
			release := make(chan struct{})
			if kind == "task" {
				b.Run(func(context.Context) { <-release })
			} else {
				b.Add(table, mutations(10, "ab"))
			}
			synctest.Wait()
			if kind == "failed row" {
				l.answer(lost, "")
			}
			var err error
			ended := false
			go func() { err = b.close(t.Context()); ended = true }()
			synctest.Wait()
			if ended {
				t.Errorf("%s: it does not wait", kind)
			}
			if kind == "task" {
				close(release)
			} else {
				l.answer(nil, "")
			}
			if synctest.Wait(); !ended || err != nil {
				t.Errorf("%s: ended %t, %v", kind, ended, err)
			}
		})
		background(t, Config{}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
			b := s.Background
			cells, tasks := 4, 0
			if kind == "task" {
				cells, tasks = 0, 2
				for range tasks {
					b.Run(func(ctx context.Context) { <-ctx.Done() })
				}
			} else {
				b.Add(table, mutations(10, "ab"))
			}
			synctest.Wait()
			if kind == "failed row" {
				l.answer(lost, "")
			}
			l.requests()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			err := b.close(ctx)
			if took := time.Since(began); took != time.Second {
				t.Errorf("%s: it ends after %v", kind, took)
			}
			if want := fmt.Sprintf("(%d changes of cells, %d other tasks)", cells, tasks); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", kind, err, want)
			}
			left, _ := b.Queued()
			if synctest.Wait(); left != 0 || b.tasks != 0 || len(b.cancels) != 0 || l.requests() != "" {
				t.Errorf("%s: %d changes, %d tasks and %d contexts are left", kind, left, b.tasks, len(b.cancels))
			}
		})
	}
}

// logged is a log in memory.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestBackgroundPauses: a fresh row goes at once, and one that failed after a pause. Rows that are given
// up are logged, and the others stay.
func TestBackgroundPauses(t *testing.T) {
	var log logged
	logger := slog.New(slog.NewTextHandler(&log, nil))
	background(t, Config{Backoff: Backoff{time.Second, time.Second}, BackgroundTimeout: 1500 * time.Millisecond, Logger: logger}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		s.Background.Add(table, mutations(10, "abc"))
		if got := l.requests(); got != "abc in 1.5s" {
			t.Errorf("at once: %q", got)
		}
		l.mu.Lock()
		first := l.waiting[0]
		l.waiting = nil
		l.mu.Unlock()
		first <- func([]string) ([]error, error) { return []error{denied, lost, lost}, nil }
		if got := l.requests(); got != "" || log.String() != "" {
			t.Errorf("without a pause: %q; log %s", got, log.String())
		}
		<-time.After(time.Second)
		if got := l.requests(); !strings.HasPrefix(got, "bc in ") || strings.Count(got, ",") != 0 {
			t.Errorf("after a pause: %q", got)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "rows=1") {
			t.Errorf("log %s", log.String())
		}
		l.answer(nil, "")
		if cells, bytes := s.Background.Queued(); cells != 0 || bytes != 0 {
			t.Errorf("%d changes, %d bytes are left", cells, bytes)
		}
		if err := s.Background.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCrowded: a row is crowded for a while after it was noted.
func TestCrowded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, row := NewCrowded(), &RowWrites{Table: &Table{Name: "t"}, Row: "r"}
		if c.Has(row) {
			t.Error("crowded before")
		}
		c.Note(row)
		<-time.After(crowdedFor - 1)
		if !c.Has(row) {
			t.Error("crowded for too short")
		}
		if <-time.After(1); c.Has(row) {
			t.Error("crowded for too long")
		}
	})
}

// TestApplySkipsTooOld: mutations below the safe point are not sent, and fail. Without a safe point all
// fail.
func TestApplySkipsTooOld(t *testing.T) {
	background(t, Config{RPCTimeout: 5 * time.Minute}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		var failed []RowMutation
		var err error
		apply := func(muts []RowMutation, answers ...error) string {
			done := make(chan struct{})
			go func() { defer close(done); failed, err = table.Apply(t.Context(), muts) }()
			synctest.Wait()
			for _, a := range answers {
				l.answer(a, "")
			}
			<-done
			return l.requests()
		}
		if got := apply(append(mutations(5, "ab"), mutations(6, "cd")...), nil); got != "cd in 1m0s" || len(failed) != 2 || failed[0].Row != "a" || !errors.Is(failed[1].Err, format.ErrTooOld) || !errors.Is(err, format.ErrTooOld) {
			t.Errorf("requests %q, failed %v, %v", got, failed, err)
		}
		if got := apply(append(mutations(5, "a"), mutations(6, "b")...), denied); got != "b in 1m0s" || len(failed) != 2 || failed[0].Row != "a" || failed[1].Row != "b" || errors.Is(err, format.ErrTooOld) || !Permanent(failed[1].Err) {
			t.Errorf("requests %q, failed %v, %v", got, failed, err)
		}
		if got := apply(mutations(5, "a")); got != "" || len(failed) != 1 || !errors.Is(err, format.ErrTooOld) {
			t.Errorf("requests %q, failed %v, %v", got, failed, err)
		}
		if got := apply(mutations(0, "a"), nil); got != "a in 1m0s" || len(failed) != 0 || err != nil {
			t.Errorf("without a transaction: requests %q, failed %v, %v", got, failed, err)
		}
		s.SafePoint.View.Store(&SafePointView{})
		s.SafePoint.reading = make(chan struct{}) // nobody reads it
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if failed, err = table.Apply(ctx, mutations(6, "ab")); l.requests() != "" || len(failed) != 2 || failed[1].Err != err || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a safe point: %v, %v", failed, err)
		}
	})
}

// TestShortTimeout: a request ends with the first of its rows' deadlines, also if Config.BackgroundTimeout
// is short. A row that was applied counts for its commit, and one that failed does not.
func TestShortTimeout(t *testing.T) {
	background(t, Config{BackgroundTimeout: time.Second}, func(t *testing.T, l *lateTable, s *Store, table *Table) {
		claims := settled.NewClaims()
		commit, _ := claims.Begin(10, 3)
		if commit == nil {
			t.Fatal("no claim")
		}
		muts := mutations(10, "ab")
		for i := range muts {
			muts[i].Settles = commit
		}
		s.Background.Add(table, muts)
		if got := l.requests(); got != "ab in 1s" {
			t.Errorf("requests %q", got)
		}
		l.answer(lost, "b")
		if _, ts := claims.Next(0); ts != 9 {
			t.Errorf("one of two rows is applied, and %d is claimed", ts)
		}
		l.answer(nil, "")
		if _, ts := claims.Next(0); ts != 10 {
			t.Errorf("both rows are applied, and %d is claimed", ts)
		}
	})
}
