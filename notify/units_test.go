package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// inTable calls f in virtual time with table t, whose client records its requests.
func inTable(t *testing.T, f func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults), opts ...txntest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, append(opts, txntest.WithoutTransport(), txntest.WithConfig(txn.Config{TokenTTL: -1}))...)
		env.CreateTable("t", "f")
		faults := txntest.NewFaults(t)
		f(t, env, env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...), faults)
	})
}

// TestTakenOffers: which offers and hints a worker takes, and what it counts.
func TestTakenOffers(t *testing.T) {
	inTable(t, func(t *testing.T, _ *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tel, err := newTelemetry(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var later timers
		l, counts := newLane([]*handler{{id: "o", concurrency: 1}}, 1, 1, &later), &counters{}
		in := &intake{client: c, lanes: map[target]*lane{targetOf(notificationOf("").Cell): l}, counters: counts, telemetry: &tel}
		waits := notificationOf("waits", 5)
		waits.Failures = map[string]format.Failure{"o": {LastTS: 6, NotBefore: now + 1e9}}
		l.skip(notificationOf("skipped").Cell, 7, time.Hour)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, tt := range []struct {
			ctx    context.Context
			n      changes.Notification
			hint   bool
			want   bool
			counts [3]int64 // found, hinted, dropped
		}{
			{t.Context(), waits, false, false, [3]int64{}},
			{t.Context(), notificationOf("skipped", 7), false, false, [3]int64{}},
			{t.Context(), notificationOf("a", 1), false, true, [3]int64{1}},
			{t.Context(), notificationOf("a", 2), false, false, [3]int64{1}},
			{ended, notificationOf("b"), true, false, [3]int64{1}},
			{t.Context(), notificationOf("b"), true, true, [3]int64{1, 1}},
			{t.Context(), notificationOf("c"), true, false, [3]int64{1, 1, 1}},
			{ended, notificationOf("d", 1), false, false, [3]int64{1, 1, 1}}, // there is no room
		} {
			got := false
			if tt.hint {
				got = in.hint(tt.ctx, tt.n.Cell)
			} else {
				got = in.offer(tt.ctx, tt.n, nil)
			}
			if n := [3]int64{counts.found.Load(), counts.hinted.Load(), counts.hintsDropped.Load()}; got != tt.want || n != tt.counts {
				t.Errorf("%s, hint: %t: taken %t, counts %v; want %t, %v", tt.n.Cell, tt.hint, got, n, tt.want, tt.counts)
			}
		}
		if !in.busy(notificationOf("a").Cell) || in.busy(notificationOf("d").Cell) || in.busy(txn.Cell{}) {
			t.Error("busy with other cells")
		}
	})
}

// TestRegistryOfOrphans: a table's registry is read once a minute, and is unknown if it cannot be read, or if the
// context ends while another goroutine reads it.
func TestRegistryOfOrphans(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		column := txn.Column{Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "t", column, "o", false); err != nil {
			t.Fatal(err)
		}
		o := newOrphans(c, slog.New(slog.DiscardHandler), nil)
		for i := range 3 {
			before := len(faults.Calls())
			r, ok := o.registry(t.Context(), "t")
			if want := []changes.ObservedColumn{{Table: "t", Column: column, Observers: []string{"o"}}}; !ok || r.asOf == 0 || cmp.Diff(want, r.observed) != "" {
				t.Errorf("%+v, %t", r, ok)
			}
			if sent := len(faults.Calls()) > before; sent != (i != 1) {
				t.Errorf("time %d: %v", i, faults.Calls()[before:])
			}
			if i > 0 {
				<-time.After(registryMaxAge)
			}
		}
		unknown := func(when string, ctx context.Context, table string) {
			t.Helper()
			if r, ok := o.registry(ctx, table); ok || r.observed != nil {
				t.Errorf("%s: %+v", when, r)
			}
		}
		unknown("a table that does not exist", t.Context(), "none")
		if _, ok := o.registry(t.Context(), "t"); !ok {
			t.Error("the registry is unknown")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		o.turn <- struct{}{}
		unknown("another goroutine reads", ended, "t")
		<-o.turn
		<-time.After(registryMaxAge)
		o.client = env.NewClient(txn.Config{TokenTTL: -1, Oracle: silentOracle{env.Oracle()}})
		unknown("the oracle does not answer", t.Context(), "t")
		o.client = c
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		unknown("the client is closed", t.Context(), "t")
	})
}

// silentOracle has no timestamps.
type silentOracle struct{ tso.Oracle }

func (silentOracle) Timestamp(context.Context) (tso.Timestamp, error) {
	return 0, errors.New("no timestamp on purpose")
}

// TestOrphans: a worker removes the notification and the failures of a column that no observer watches. It does not take
// them, and leaves those of other workers.
func TestOrphans(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		observed(t, env.Client)
		tel, err := newTelemetry(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		clean := newCleaner(c, nil, nil)
		in := &intake{client: c, lanes: map[target]*lane{}, orphans: newOrphans(c, slog.New(slog.DiscardHandler), clean), telemetry: &tel}
		watched, orphan := notificationOf("r", 1), notificationOf("r", 1)
		orphan.Cell.Qualifier = "orphan"
		orphan.Failures = map[string]format.Failure{"gone": {}}
		missing := orphan
		missing.Cell.Table = "none"
		for _, n := range []changes.Notification{watched, orphan, missing} {
			if in.offer(t.Context(), n, nil) || in.hint(t.Context(), n.Cell) {
				t.Errorf("%s is taken", n.Cell)
			}
		}
		if len(clean.waiting) != 1 || clean.waiting[0].Cell != orphan.Cell || clean.waiting[0].UpTo == 0 || !slices.Equal(clean.waiting[0].Failures, []string{"gone"}) {
			t.Errorf("it removes %+v", clean.waiting)
		}
	})
}

// TestCleanerCounts: a cleaner counts what it has removed, and not what it could not remove.
func TestCleanerCounts(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		observed(t, env.Client, "r")
		now, err := c.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var logged bytes.Buffer
		var cleared atomic.Int64
		clean := newCleaner(c, slog.New(slog.NewTextHandler(&logged, nil)), &cleared)
		for _, closed := range []int{0, 1} {
			if closed == 1 {
				if err := c.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			clean.start(t.Context())
			clean.add(changes.Cleared{Cell: notificationOf("r").Cell, UpTo: now})
			clean.stop()
			if n := cleared.Load(); n != 1 || strings.Count(logged.String(), "\n") != closed {
				t.Errorf("the client is closed: %d; %d cells were removed, logged %s", closed, n, &logged)
			}
		}
	})
}

// TestMovesOn: after a piece, a worker moves the sweep on, also if another worker has taken the piece because of its lease,
// and remembers what either has missed. It moves nothing if the sweep is elsewhere.
func TestMovesOn(t *testing.T) {
	for _, tt := range []struct {
		name      string
		meanwhile *changes.SweepPosition // of another worker
		missed    bool
		want      changes.SweepPosition
	}{
		{"alone", nil, false, changes.SweepPosition{Row: "m"}},
		{"alone, with a piece missed", nil, true, changes.SweepPosition{Row: "m", Missed: true}},
		{"another one has the piece", &changes.SweepPosition{}, false, changes.SweepPosition{Row: "m"}},
		{"another one has the piece, this one missed it", &changes.SweepPosition{}, true, changes.SweepPosition{Row: "m", Missed: true}},
		{"another one has missed it", &changes.SweepPosition{Missed: true}, false, changes.SweepPosition{Row: "m", Missed: true}},
		{"another one is elsewhere", &changes.SweepPosition{Row: "k"}, true, changes.SweepPosition{Row: "k"}},
		{"another one has ended the sweep", &changes.SweepPosition{Complete: true}, true, changes.SweepPosition{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
				if _, err := c.Timestamp(t.Context()); err != nil {
					t.Fatal(err)
				}
				at := func() changes.SweepPosition {
					t.Helper()
					all, err := changes.SweepPositions(t.Context(), env.Client, nil, "t")
					if err != nil || len(all) != 1 {
						t.Fatalf("%+v, %v", all, err)
					}
					return all[0]
				}
				move := func(p changes.SweepPosition, row string, end bool) changes.SweepPosition {
					t.Helper()
					p, ok, err := changes.MoveSweep(t.Context(), env.Client, p, row, end, time.Minute)
					if err != nil || !ok {
						t.Fatal(ok, err)
					}
					return p
				}
				p := move(at(), "", false)
				if tt.meanwhile != nil {
					<-time.After(time.Second)
					other := p
					other.Missed = tt.meanwhile.Missed
					move(other, tt.meanwhile.Row, tt.meanwhile.Complete)
				}
				p.Missed = tt.missed
				j := &journal{search: Search{Client: c}}
				if err := j.moveOn(t.Context(), p, "m", time.Hour); err != nil {
					t.Error(err)
				}
				if d := cmp.Diff(tt.want, at(), cmpopts.IgnoreFields(changes.SweepPosition{}, "Table", "DueTS", "BegunTS", "Complete"), cmpopts.IgnoreUnexported(changes.SweepPosition{})); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if err := c.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := j.moveOn(t.Context(), p, "m", time.Hour); !errors.Is(err, txn.ErrClosed) {
					t.Errorf("its client is closed: %v", err)
				}
			})
		})
	}
}

// TestToleratedErrors: the search continues after an error, unless its context has ended or the client is closed.
func TestToleratedErrors(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken on purpose")
	for _, tt := range []struct {
		ctx   context.Context
		err   error
		want  error
		lines int
	}{{t.Context(), nil, nil, 0}, {t.Context(), broken, nil, 1}, {ended, broken, broken, 0}, {t.Context(), txn.ErrClosed, txn.ErrClosed, 0}} {
		var logged bytes.Buffer
		j := &journal{search: Search{Logger: slog.New(slog.NewTextHandler(&logged, nil))}}
		if err := j.tolerate(tt.ctx, tt.err); err != tt.want || strings.Count(logged.String(), "\n") != tt.lines {
			t.Errorf("%v: %v, logged %s", tt.err, err, &logged)
		}
	}
}

// TestBackfillExactly: a backfill sends cells in batches, and says after each how many it has notified, and up to which row.
func TestBackfillExactly(t *testing.T) {
	long.RacedAtNight(t)
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		column := txn.Column{Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "t", column, "o", false); err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{0, 1, backfillBatch, backfillBatch + 1} {
			if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				for i := range rows {
					tx.Table("t").Set(fmt.Sprintf("row%03d", i), "f", "q", nil)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			var said, want []string
			for n := min(rows, backfillBatch); n > 0 && n <= rows; n += backfillBatch {
				want = append(want, fmt.Sprintf("%d row%03d", n, n-1))
			}
			if rows > backfillBatch {
				want = append(want, fmt.Sprintf("%d row%03d", rows, rows-1))
			}
			n, err := Backfill(t.Context(), c, BackfillConfig{Table: "t", Column: column, Progress: func(cells int, row string) { said = append(said, fmt.Sprint(cells, " ", row)) }})
			if n != rows || err != nil || !slices.Equal(said, want) {
				t.Errorf("%d rows: %d, %v, said %q, want %q", rows, n, err, said, want)
			}
		}
		refused := false
		once := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Step == txntest.StepNotify && !refused {
				refused = true
				return status.Error(codes.PermissionDenied, "refused on purpose")
			}
			return nil
		})...)
		if n, err := Backfill(t.Context(), once, BackfillConfig{Table: "t", Column: column}); status.Code(err) != codes.PermissionDenied || n != 0 {
			t.Errorf("the first batch is refused: %d, %v", n, err)
		}
	})
}

// TestCounterRefuses: a counter refuses cells that no counter wrote, and rows that are not its shards. To add 0 sends nothing.
func TestCounterRefuses(t *testing.T) {
	for row, want := range map[string]string{"k#shard-0001": "k", "#shard-0001": "", "a#shard-b#shard-c": "a#shard-b"} {
		if key, _, ok := cutLast(row, shardInfix); !ok || key != want {
			t.Errorf("%s: %q, %t", row, key, ok)
		}
	}
	if key, _, ok := cutLast("k", shardInfix); ok || key != "" {
		t.Errorf("%q, %t", key, ok)
	}
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		counter := Counter{Table: "t", Family: "f", Qualifier: "n", Shards: 1}
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("t").Set(shardRow("k", 0), "f", counter.Column().Qualifier, []byte("short"))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		before := len(faults.Calls())
		if err := counter.Add(t.Context(), tx, "k", 0); err != nil || len(faults.Calls()) != before {
			t.Errorf("%v, %d requests", err, len(faults.Calls())-before)
		}
		shard := txn.Cell{Table: "t", Row: shardRow("k", 0), Family: "f", Qualifier: counter.Column().Qualifier}
		other := shard
		other.Row = "other"
		n, rerr := counter.Read(t.Context(), tx.Table("t"), "k")
		for name, err := range map[string]error{"Add": counter.Add(t.Context(), tx, "k", 1), "Read": rerr, "Observe": counter.Observe(t.Context(), tx, shard), "of another row": counter.Observe(t.Context(), tx, other)} {
			if !errors.Is(err, txn.ErrInvalid) || n != 0 || strings.Contains(err.Error(), "is not one of its shards") != (name == "of another row") {
				t.Errorf("%s: %v, %d", name, err, n)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range []error{counter.Add(ended, tx, "new", 1), counter.Observe(ended, tx, txn.Cell{Table: "t", Row: shardRow("new", 0)})} {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("its context has ended: %v", err)
			}
		}
		for cell := range tx.Writes() {
			t.Errorf("it writes %v", cell)
		}
		if n, err := counter.Read(ended, tx.Table("t"), "new"); !errors.Is(err, context.Canceled) || n != 0 {
			t.Errorf("its context has ended: %d, %v", n, err)
		}
	})
}

// TestFolds: an observer of a counter writes the sum, and how much of each shard is in it, and no other cell. The shard
// of a key is no count of a key with its name.
func TestFolds(t *testing.T) {
	inTable(t, func(t *testing.T, _ *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		counter := Counter{Table: "t", Family: "f", Qualifier: "n", Shards: 2}
		cell := func(row, qualifier string) txn.Cell {
			return txn.Cell{Table: "t", Row: row, Family: "f", Qualifier: qualifier}
		}
		first, second := shardRow("k", 0), shardRow("k", 1)
		if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for at, n := range map[txn.Cell]int64{cell("k", "n"): 10, cell(first, "n.added"): 7, cell(first, "n.folded"): 7, cell(second, "n.added"): 5, cell(second, "n.folded"): 2} {
				tx.Table("t").Set(at.Row, at.Family, at.Qualifier, encodeCount(n))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if n, err := counter.Read(t.Context(), tx.Table("t"), second); n != 0 || err != nil {
			t.Errorf("a key with the name of a shard: %d, %v", n, err)
		}
		if err := counter.Observe(t.Context(), tx, cell(second, "n.added")); err != nil {
			t.Error(err)
		}
		got := map[txn.Cell]int64{}
		for at, w := range tx.Writes() {
			if got[at], err = decodeCount(at, w); err != nil {
				t.Error(err)
			}
		}
		if d := cmp.Diff(map[txn.Cell]int64{cell("k", "n"): 13, cell(second, "n.folded"): 5}, got); d != "" {
			t.Errorf("writes (-want +got):\n%s", d)
		}
	})
}

// TestHandlerOfPattern: a pattern takes no weak notifications. Options of transactions add up.
func TestHandlerOfPattern(t *testing.T) {
	observer := ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { return nil })
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for weak, want := range map[bool]string{false: "", true: "a pattern cannot take weak notifications"} {
		opts := []HandleOption{TxnOptions(txn.Named("a")), TxnOptions(txn.Named("b"), txn.Named("c"))}
		if weak {
			opts = append(opts, Weak())
		}
		h, err := newHandler("o", target{"t", txn.Pattern("f", "q")}, observer, cfg, opts)
		if weak != errors.Is(err, txn.ErrInvalid) || weak && !strings.Contains(err.Error(), want) || !weak && len(h.txnOptions) != 3 {
			t.Errorf("weak: %t: %+v, %v", weak, h, err)
		}
	}
}

// TestChecksOfACell: what a check leaves: a removal once every observer is up to date, nothing while one has to run again,
// and a skip while only workers elsewhere have something to do, or the cell is damaged. It lets a finder know once that
// another worker was faster.
func TestChecksOfACell(t *testing.T) {
	type left struct {
		runs, met, removals int
		skip                time.Duration // 0: none; 1: as long as the pause, or longer
		again               [2]time.Duration
	}
	second, minute, long := [2]time.Duration{time.Second / 2, time.Second}, [2]time.Duration{59 * time.Second, time.Minute}, [2]time.Duration{5 * time.Minute, 10 * time.Minute}
	for name, tt := range map[string]struct {
		elsewhere, damaged, silent bool    // silent: Bigtable does not answer the second observer
		first                      error   // of the first observer
		want                       [2]left // after each check
	}{
		"up to date":          {want: [2]left{{runs: 2, removals: 1}, {runs: 2, met: 1, removals: 2}}},
		"elsewhere":           {elsewhere: true, want: [2]left{{runs: 2, skip: registryMaxAge}, {runs: 2, met: 1, skip: registryMaxAge}}},
		"elsewhere, and here": {elsewhere: true, silent: true, want: [2]left{{runs: 1, again: second}, {runs: 1, met: 1, again: second}}},
		"snoozed":             {first: Snooze(time.Minute), want: [2]left{{runs: 2, again: minute}, {runs: 2, met: 1, again: minute}}},
		"damaged":             {damaged: true, want: [2]left{{skip: 1, again: long}, {skip: 1, again: long}}},
	} {
		t.Run(name, func(t *testing.T) {
			var opts []txntest.Option
			if tt.damaged {
				opts = append(opts, txntest.WithoutCheck())
			}
			inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
				column := txn.Column{Family: "f", Qualifier: "q"}
				cell := txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
				w, err := NewWorker(c, Config{})
				if err != nil {
					t.Fatal(err)
				}
				var got left
				observer := ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { got.runs++; return nil })
				snoozing := ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error { got.runs++; return tt.first })
				if err := errors.Join(w.Handle("a", "t", column, snoozing), w.Handle("b", "t", column, observer, Timeout(10*time.Second)), w.Register(t.Context())); err != nil {
					t.Fatal(err)
				}
				if tt.elsewhere {
					if err := changes.RegisterObserver(t.Context(), c, "t", column, "c", false); err != nil {
						t.Fatal(err)
					}
				}
				changed, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table("t").Set("r", "f", "q", nil)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if tt.damaged {
					m := bigtable.NewMutation()
					m.Set(format.WriteFamily, column.Key(), (changed + 1).Cell(), []byte("damaged"))
					if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
						t.Fatal(err)
					}
					<-time.After(time.Second)
				}
				if tt.silent {
					n := 0
					faults.On("each second read", func(c txntest.Call) bool {
						if c.Step == txntest.StepRead && c.Row == "r" {
							n++
						}
						return c.Step == txntest.StepRead && c.Row == "r" && n%2 == 0
					}, txntest.Hold, 2)
				}
				w.shared = share(w.cfg.Concurrency, w.all())
				l := newLane(w.all(), 1, 1, &w.later)
				for n, want := range tt.want {
					began := time.Now()
					again := (&check{w, l, task{cell, func() { got.met++ }}}).do(t.Context(), t.Context())
					got.removals, got.again, got.skip = len(w.cleaner.waiting), want.again, 0
					if again < want.again[0] || again > want.again[1] {
						t.Errorf("check %d: again after %v", n, again)
					}
					if s, ok := l.skips[cell]; ok {
						if got.skip = s.until.Sub(began); got.again[0] == long[0] && !s.until.Before(began.Add(again)) {
							got.skip = 1
						}
						if s.upTo < changed || !tt.damaged && s.upTo > changed {
							t.Errorf("check %d: it skips up to %d, and the change is %d", n, s.upTo, changed)
						}
					}
					if got != want {
						t.Errorf("check %d: %+v, want %+v", n, got, want)
					}
					clear(l.skips)
				}
			}, opts...)
		})
	}
}
