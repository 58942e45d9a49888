package notify

import (
	"bytes"
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

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// offers notes the rows that are offered.
type offers struct {
	mu   sync.Mutex
	rows []string
	then func(n changes.Notification, contended func()) // after each; nil: nothing
}

func (o *offers) offer(_ context.Context, n changes.Notification, contended func()) bool {
	o.mu.Lock()
	o.rows = append(o.rows, n.Cell.Row)
	o.mu.Unlock()
	if o.then != nil {
		o.then(n, contended)
	}
	return true
}

// take returns the rows in order, and forgets them.
func (o *offers) take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	slices.Sort(o.rows)
	defer func() { o.rows = nil }()
	return strings.Join(o.rows, "")
}

// sweeping calls f with a sweeper of a table without a journal, which has rows a to h with notifications.
func sweeping(t *testing.T, f func(t *testing.T, env *txntest.Env, s *sweeper, o *offers, faults *txntest.Faults), opts ...txntest.Option) {
	t.Helper()
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		observed(t, env.Client, strings.Split("abcdefgh", "")...)
		o := &offers{}
		f(t, env, &sweeper{scanner: &Scanner{}, search: Search{Client: c, Tables: []string{"t"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler), Offer: o.offer},
			threads: 1, pieces: 10, least: time.Second, most: time.Minute, interval: time.Second, swept: func(string) bool { return true }, cuts: map[string]cut{}}, o, faults)
	}, append(opts, txntest.WithoutJournal())...)
}

// cutAt cuts table t at keys.
func (s *sweeper) cutAt(keys ...string) { s.cuts["t"] = cut{time.Now(), cutTable("t", keys, 100)} }

// TestTurnsOfASweeper: a turn reads the worker's share of the pieces that its sweep has not read yet, and begins no
// further piece after a while.
func TestTurnsOfASweeper(t *testing.T) {
	sweeping(t, func(t *testing.T, env *txntest.Env, s *sweeper, o *offers, faults *txntest.Faults) {
		turn := func(when string, fails bool, left int, part float64, interval time.Duration, want ScannerStats) {
			t.Helper()
			before := s.scanner.Stats()
			err := s.turn(t.Context())
			if (err != nil) != fails || len(s.todo) != left || s.part != part || s.interval != interval {
				t.Errorf("%s: %v; %d pieces left, part %v, interval %v", when, err, len(s.todo), s.part, s.interval)
			}
			got := s.scanner.Stats()
			if got = (ScannerStats{got.Sweeps - before.Sweeps, got.Pieces - before.Pieces, got.Notifications - before.Notifications, got.Teleports - before.Teleports}); got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		rows := func(when, want string) {
			t.Helper()
			if got := o.take(); got != want {
				t.Errorf("%s: offered %q, want %q", when, got, want)
			}
		}
		s.cutAt("c", "e", "g")
		s.missing.Store("t", true)
		turn("alone", false, 0, 1, time.Second, ScannerStats{1, 4, 8, 0})
		rows("alone", "abcdefgh")
		if _, known := s.missing.Load("t"); known || s.fleet.share != 1 {
			t.Errorf("the table is missing: %t; %d workers", known, s.fleet.share)
		}
		s.fleet = fleet{share: 2, counted: time.Now()}
		turn("the first half", false, 2, 0.5, time.Second, ScannerStats{1, 2, 4, 0})
		turn("the second half", false, 0, 0.5, time.Second, ScannerStats{0, 2, 4, 0})
		rows("both", "abcdefgh")
		s.fleet.share = 1

		o.then = func(changes.Notification, func()) { <-time.After(maxTurn / 2) }
		turn("slow offers", false, 3, 0.25, time.Second, ScannerStats{1, 1, 2, 0})
		o.then = nil
		s.fleet.counted = time.Now()
		turn("the rest", false, 0, 0.75, time.Second, ScannerStats{0, 3, 6, 0})
		rows("slow offers, and the rest", "abcdefgh")

		s.search.Client = env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Second}, faults.DialOptions()...)
		broken := true
		failing := faults.On("a piece", func(c txntest.Call) bool {
			return broken && c.Table == "t" && c.Step == txntest.StepRead && strings.Contains(fmt.Sprint(c.Request), `"e`)
		}, txntest.DropRequest, 0)
		s.cuts["t"] = cut{time.Now(), []piece{{"t", "a", "c", true}, {"t", "e", "g", true}, {"t", "g", "", true}}} // not cut again
		turn("a piece fails", true, 0, 1, time.Second, ScannerStats{1, 3, 4, 0})
		rows("a piece fails", "abgh")
		<-failing.Fired()
		broken = false

		ctx, cancel := context.WithCancel(t.Context())
		o.then = func(changes.Notification, func()) { cancel() }
		if s.cutAt("c", "e", "g"); s.turn(ctx) == nil || len(o.take()) > 2 || len(s.todo) != 3 {
			t.Errorf("its context has ended, and %d pieces are left", len(s.todo))
		}
		o.then, s.todo = nil, nil

		broken = true
		unsampled := faults.On("samples", func(c txntest.Call) bool { return broken && c.Method == "SampleRowKeys" }, txntest.DropRequest, 0)
		s.cuts, s.part = map[string]cut{}, 7
		turn("the table cannot be cut", true, 0, 7, time.Second, ScannerStats{1, 0, 0, 0})
		<-unsampled.Fired()
		broken, s.cuts = false, map[string]cut{}

		if err := env.Admin.DeleteTable(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		s.fleet.counted = time.Now()
		turn("the table is deleted", false, 0, 1, 2*time.Second, ScannerStats{1, 0, 0, 0})
		if _, known := s.missing.Load("t"); !known {
			t.Error("the table is not known as missing")
		}
		s.cutAt("c")
		turn("the table is deleted after it was cut", false, 0, 1, 4*time.Second, ScannerStats{1, 2, 0, 0})
		s.swept = func(string) bool { return false }
		s.todo, s.took = make([]piece, 3), time.Hour
		turn("a journal covers all tables", false, 0, 1, time.Second, ScannerStats{})
		if s.all != 0 || s.took != 0 {
			t.Errorf("a journal covers all tables, and the sweep has %d pieces, and took %v", s.all, s.took)
		}
	}, txntest.WithoutCheck())
}

// TestScanLeaves: a scan that another worker's work drives away leaves the rest of its piece, which begins with a whole
// row. It leaves nothing if it may not jump, or nobody works there, and nothing of such a rest.
func TestScanLeaves(t *testing.T) {
	sweeping(t, func(t *testing.T, env *txntest.Env, s *sweeper, o *offers, faults *txntest.Faults) {
		met, left := true, 0
		o.then = func(_ changes.Notification, contended func()) {
			if met {
				contended()
			}
		}
		scan := func(p piece) (rest []piece) {
			t.Helper()
			s.scanner.teleports.Store(0)
			found, rest, err := s.scan(t.Context(), p)
			if n := s.scanner.teleports.Load(); err != nil || n > 1 || n != int64(min(len(rest), 1)) || found != len(o.rows) {
				t.Errorf("%v, %d found, %d offered, %d jumps, left %+v", err, found, len(o.rows), n, rest)
			}
			for _, row := range strings.Split("bcdef", "") {
				if n := holders(rest, row) + strings.Count(strings.Join(o.rows, ""), row); n != 1 {
					t.Errorf("row %s was offered, or is left, %d times: %q, %+v", row, n, o.rows, rest)
				}
			}
			o.take()
			return rest
		}
		for range 30 {
			rest := scan(piece{"t", "b", "g", false})
			for _, p := range rest {
				if left++; !p.resumed || p.table != "t" {
					t.Errorf("left %+v", p)
				}
			}
		}
		if left == 0 {
			t.Error("no scan left anything")
		}
		if rest := scan(piece{"t", "b", "g", true}); rest != nil {
			t.Errorf("of a rest it left %+v", rest)
		}
		s.scanner.NoTeleport = true
		if rest := scan(piece{"t", "b", "g", false}); rest != nil {
			t.Errorf("it may not jump, and left %+v", rest)
		}
		s.scanner.NoTeleport, met = false, false
		if rest := scan(piece{"t", "b", "g", false}); rest != nil {
			t.Errorf("nobody works there, and it left %+v", rest)
		}
		failing := faults.On("ranges", func(c txntest.Call) bool { return c.Table == "t" && c.Step == txntest.StepRead && c.Row == "" }, txntest.DropRequest, 0)
		if found, rest, err := s.scan(t.Context(), piece{"t", "b", "g", false}); err == nil || found != 0 || rest != nil || o.rows != nil {
			t.Errorf("the table does not answer: %d, %+v, %v, offered %v", found, rest, err, o.rows)
		}
		<-failing.Fired()
	})
}

// TestCutsOfASweeper: a sweeper cuts a table once a minute, and reads the pieces in random order.
func TestCutsOfASweeper(t *testing.T) {
	sweeping(t, func(t *testing.T, _ *txntest.Env, s *sweeper, _ *offers, faults *txntest.Faults) {
		cuts := func(when string, want int) {
			t.Helper()
			faults.Reset()
			all, err := s.shuffled(t.Context(), []string{"t"})
			n := 0
			for _, c := range faults.Calls() {
				if c.Method == "SampleRowKeys" {
					n++
				}
			}
			if err != nil || n != want || len(all) != 2 || holders(all, "a") != 1 || holders(all, "h") != 1 {
				t.Errorf("%s: %+v, %v, %d requests", when, all, err, n)
			}
		}
		cuts("the first time", 1)
		cuts("at once", 0)
		<-time.After(cutMaxAge)
		cuts("after a minute", 0)
		<-time.After(1)
		cuts("later", 1)

		s.cutAt(strings.Split("abcdefgh", "")...)
		orders := map[string]bool{}
		for range 30 {
			all, err := s.shuffled(t.Context(), []string{"t"})
			if err != nil || len(all) != 9 || holders(all, "a") != 1 || holders(all, "h") != 1 {
				t.Fatalf("%+v, %v", all, err)
			}
			orders[fmt.Sprint(all)] = true
		}
		if len(orders) < 2 {
			t.Error("thirty sweeps have the same order")
		}
		s.search.Tables = []string{"t", "u"}
		s.swept = func(table string) bool { return table == "u" }
		if got := s.tables(); !slices.Equal(got, []string{"u"}) || !slices.Equal(s.search.Tables, []string{"t", "u"}) {
			t.Errorf("tables %v of %v", got, s.search.Tables)
		}
		for all, want := range map[int]bool{0: false, 1: true} { // only a worker that has something to sweep counts the others
			s.all, s.part, s.fleet = all, 1, fleet{share: 1}
			if err := s.wait(t.Context(), time.Now()); err != nil || s.fleet.counted.IsZero() == want {
				t.Errorf("%d pieces: %v, %+v", all, err, s.fleet)
			}
		}
	})
}

// TestRunOfASweeper: a sweep that fails is tried again, after a pause. The sweeps end with the context, and with the
// client, of which nobody warns.
func TestRunOfASweeper(t *testing.T) {
	sweeping(t, func(t *testing.T, env *txntest.Env, s *sweeper, o *offers, faults *txntest.Faults) {
		var logged bytes.Buffer
		s.search.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		s.cutAt()
		s.least, s.interval, s.most = time.Millisecond, time.Millisecond, 2*time.Millisecond
		failing := faults.On("ranges", func(c txntest.Call) bool { return c.Table == "t" && c.Step == txntest.StepRead && c.Row == "" }, txntest.Crash, 3)
		s.search.Client = env.NewClient(txn.Config{TokenTTL: -1, RPCTimeout: time.Millisecond}, faults.DialOptions()...)
		ctx, cancel := context.WithCancel(t.Context())
		began, done := time.Now(), make(chan error, 1)
		o.then = func(changes.Notification, func()) { cancel() }
		go func() { done <- s.run(ctx) }()
		if err := <-done; !errors.Is(err, context.Canceled) || strings.Count(logged.String(), "\n") != int(s.scanner.sweeps.Load())-1 || time.Since(began) < time.Duration(s.scanner.sweeps.Load()-1)*findPause || s.scanner.sweeps.Load() < 2 {
			t.Errorf("%v after %v and %d sweeps, logged %s", err, time.Since(began), s.scanner.sweeps.Load(), &logged)
		}
		<-failing.Fired()
		logged.Reset()
		if err := s.search.Client.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.run(t.Context()); !errors.Is(err, txn.ErrClosed) || logged.Len() > 0 {
			t.Errorf("the client is closed: %v, logged %s", err, &logged)
		}
	})
}

// TestFindWithoutJournal: a scanner sweeps tables that have no journal, with two threads, until its context ends, or its
// client is closed.
func TestFindWithoutJournal(t *testing.T) {
	sweeping(t, func(t *testing.T, env *txntest.Env, s *sweeper, o *offers, _ *txntest.Faults) {
		env.CreateTable("u", "f")
		if err := changes.RegisterObserver(t.Context(), env.Client, "u", watched, "o", false); err != nil {
			t.Fatal(err)
		}
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for _, row := range []string{"a", "h"} {
				tx.Table("u").Set(row, "f", "q", nil)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.search.Tables = []string{"t", "u"} // of two pieces each
		for name, end := range map[string]func(cancel func()) error{
			"its context has ended": func(cancel func()) error { cancel(); return context.Canceled },
			"the client is closed": func(func()) error {
				if err := s.search.Client.Close(t.Context()); err != nil {
					t.Error(err)
				}
				return txn.ErrClosed
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			s.search.Client = env.NewClient(txn.Config{TokenTTL: -1})
			held := make(chan struct{})
			o.then = func(changes.Notification, func()) { <-held }
			done := make(chan error, 1)
			go func() { done <- (&Scanner{}).Find(ctx, s.search) }()
			<-time.After(time.Minute)
			synctest.Wait()
			if n := len(o.take()); n != 2 {
				t.Errorf("%d cells offered at the same time, want 2", n)
			}
			close(held)
			<-time.After(time.Second)
			want := end(cancel)
			if err := <-done; !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			o.take()
		}
	})
}
