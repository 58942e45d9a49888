package notify

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var watched = txn.Column{Family: "f", Qualifier: "q"}

// observed registers an observer of table t, and changes rows.
func observed(t *testing.T, c *txn.Client, rows ...string) {
	t.Helper()
	if err := changes.RegisterObserver(t.Context(), c, "t", watched, "o", false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for _, row := range rows {
			tx.Table("t").Set(row, watched.Family, watched.Qualifier, nil)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Second)
}

// position is how far the sweep of table t is.
func position(t *testing.T, c *txn.Client) changes.SweepPosition {
	t.Helper()
	all, err := changes.SweepPositions(t.Context(), c, nil, "t")
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

// others announces workers with observer o.
func others(t *testing.T, env *txntest.Env, n int) {
	t.Helper()
	for range n {
		if err := changes.Announce(t.Context(), env.NewClient(txn.Config{TokenTTL: time.Hour}), []string{"o"}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPiecesOfASweep: a worker reads the next piece of each table whose turn it is, and leaves the next piece to other workers
// after its part of a day. Other workers leave the piece to it meanwhile. What it cannot read is missed.
func TestPiecesOfASweep(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		observed(t, env.Client, "a", "z")
		if _, err := c.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		var offers []string
		var meanwhile changes.SweepPosition
		search := Search{Client: c, Tables: []string{"t", "none"}, Logger: slog.New(slog.DiscardHandler), Offer: func(_ context.Context, n changes.Notification, contended func()) bool {
			offers, meanwhile = append(offers, n.Cell.Row), position(t, env.Client)
			contended()
			return true
		}}
		j := newJournal(&Scanner{}, search, time.Second, time.Minute, 10, 1)
		look := func(when string, sweep bool, row string, want changes.SweepPosition, stats ScannerStats) {
			t.Helper()
			before := position(t, env.Client)
			offers = nil
			if err := j.look(t.Context(), sweep); (err != nil) != want.Missed {
				t.Errorf("%s: %v", when, err)
			}
			now := changes.OracleNow(c)
			if row != strings.Join(offers, ",") {
				t.Errorf("%s: offered %q, want %q", when, offers, row)
			}
			if row != "" && (meanwhile.Row != before.Row || meanwhile.BegunTS != before.BegunTS && before.Row != "" || meanwhile.DueTS != now+600e6 || meanwhile.Missed != before.Missed) {
				t.Errorf("%s: while it was read: %+v, before: %+v", when, meanwhile, before)
			}
			got := position(t, env.Client)
			if sweep && want.DueTS > 0 {
				want.DueTS += now
			} else {
				want.DueTS = before.DueTS
			}
			want.Table, want.Complete = "t", true
			if d := cmp.Diff(want, got, cmpopts.IgnoreFields(changes.SweepPosition{}, "BegunTS"), cmpopts.IgnoreUnexported(changes.SweepPosition{})); d != "" {
				t.Errorf("%s (-want +got):\n%s", when, d)
			}
			begun := before.BegunTS
			if want.Row == "" && before.Row != "" {
				begun = now
			}
			if got.BegunTS < begun-1000 || got.BegunTS > begun+1000 {
				t.Errorf("%s: the sweep began at %d, want %d", when, got.BegunTS, begun)
			}
			if d := cmp.Diff(stats, j.scanner.Stats()); d != "" {
				t.Errorf("%s (-want +got):\n%s", when, d)
			}
			if !slices.Equal(j.journaled, []string{"t"}) || len(j.covered) != 1 || !j.covered["t"] {
				t.Errorf("%s: journals of %v, complete %v", when, j.journaled, j.covered)
			}
		}
		due := func() { // lets the next piece be read now
			t.Helper()
			p := position(t, env.Client)
			p, ok, err := changes.MoveSweep(t.Context(), env.Client, p, p.Row, false, 0)
			if err != nil || !ok {
				t.Fatal(p, ok, err)
			}
			<-time.After(time.Second)
		}
		const half = 12 * 3600e6 // a day for two pieces, in microseconds
		look("before it runs", false, "", changes.SweepPosition{}, ScannerStats{})
		look("the first piece", true, "a", changes.SweepPosition{Row: "z", DueTS: half}, ScannerStats{Sweeps: 1, Pieces: 1, Notifications: 1})
		look("at once", true, "", changes.SweepPosition{Row: "z"}, ScannerStats{Sweeps: 1, Pieces: 1, Notifications: 1})
		stale := position(t, env.Client)
		due()
		look("the last piece", true, "z", changes.SweepPosition{DueTS: half}, ScannerStats{Sweeps: 1, Pieces: 2, Notifications: 2})
		due()

		offers = nil
		if err := j.sweep(t.Context(), stale); err != nil || offers != nil {
			t.Errorf("another worker has moved the sweep on: %v, offered %q", err, offers)
		}
		broken := true
		failing := faults.On("a range", func(c txntest.Call) bool {
			return broken && c.Table == "t" && c.Step == txntest.StepRead && c.Row == ""
		}, txntest.DropRequest, 0)
		if err := j.look(t.Context(), true); err == nil || position(t, env.Client).Row != "z" || !position(t, env.Client).Missed || len(offers) > 0 {
			t.Errorf("a piece that is not answered: %v, %+v", err, position(t, env.Client))
		}
		<-failing.Fired()
		broken = false
		for _, row := range []string{"z", ""} {
			p := position(t, env.Client)
			p.Missed = true
			if _, ok, err := changes.MoveSweep(t.Context(), env.Client, p, row, false, 0); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		<-time.After(time.Second)
		if err := j.look(t.Context(), true); err != nil || !position(t, env.Client).Missed || position(t, env.Client).Row != "z" {
			t.Errorf("after a piece that was missed: %v, %+v", err, position(t, env.Client))
		}
		offers = nil
		due()
		samples := faults.On("samples", func(c txntest.Call) bool { return c.Method == "SampleRowKeys" }, txntest.DropRequest, 0)
		if err := j.look(t.Context(), true); err == nil || position(t, env.Client).Row != "z" || len(offers) > 0 {
			t.Errorf("the table cannot be cut: %v, %+v, offered %v", err, position(t, env.Client), offers)
		}
		<-samples.Fired()

		// A damaged record of another table holds up nothing. If nothing can be read, what was known stays.
		env.CreateTable("u", "f")
		m := bigtable.NewMutation()
		m.Set("meta", "sweep", 0, []byte("damaged"))
		if err := env.Bigtable.Open("percolator").Apply(t.Context(), "sweep/u", m); err != nil {
			t.Fatal(err)
		}
		j.covered = nil
		for _, tables := range [][]string{{"t", "u"}, {"u"}} {
			j.search.Tables = tables
			if err := j.look(t.Context(), false); !errors.Is(err, txn.ErrCorrupt) || !j.covered["t"] || len(j.journaled) != 2 {
				t.Errorf("the record of another table is damaged: %v; journals of %v, complete %v", err, j.journaled, j.covered)
			}
		}
		refused := 0
		j.search.Client = env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Step == txntest.StepSweep && call.Method == "CheckAndMutateRow" && refused == 0 {
				refused++
				return status.Error(codes.PermissionDenied, "refused on purpose")
			}
			return nil
		})...)
		if err := j.moveOn(t.Context(), position(t, env.Client), "z", time.Hour); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the sweep cannot be moved on: %v after %d refusals", err, refused)
		}
		j.search.Client = c
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, tables := range [][]string{{"t"}, {"never opened"}} {
			j.search.Tables = tables
			if err := j.look(t.Context(), true); !errors.Is(err, txn.ErrClosed) {
				t.Errorf("the client is closed: %v", err)
			}
		}
		if err := j.sweep(t.Context(), position(t, env.Client)); !errors.Is(err, txn.ErrClosed) {
			t.Errorf("the client is closed: %v", err)
		}
	})
}

// TestTablesWithoutJournal: the sweeper reads a table that has no journal, until a sweep has completed it, or an older
// client has left.
func TestTablesWithoutJournal(t *testing.T) {
	inTable(t, func(t *testing.T, _ *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		j := newJournal(&Scanner{}, Search{Client: c, Tables: []string{"t"}, Logger: slog.New(slog.DiscardHandler)}, time.Second, time.Minute, 10, 1)
		if err := j.look(t.Context(), true); err != nil || len(j.journaled) != 0 || !j.needsSweeps("t") {
			t.Errorf("%v, journals of %v", err, j.journaled)
		}
		j.covered = map[string]bool{"t": true, "u": false}
		for _, old := range []bool{false, true} {
			if j.old = old; j.needsSweeps("t") != old || !j.needsSweeps("u") || !j.needsSweeps("v") {
				t.Errorf("beside an older client: %t; the sweeper reads a table with a complete journal: %t", old, j.needsSweeps("t"))
			}
		}
	}, txntest.WithoutJournal())
}

// TestBeginOfAJournal: a worker that begins looks which tables have a journal, and sweeps none. Beside other workers it
// waits for a moment, and counts them again.
func TestBeginOfAJournal(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
		observed(t, env.Client, "a", "z")
		journal := func() *journal {
			return newJournal(&Scanner{}, Search{Client: c, Tables: []string{"t"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler), Offer: func(context.Context, changes.Notification, func()) bool {
				t.Error("a sweep has begun")
				return false
			}}, time.Second, time.Minute, 10, 1)
		}
		for n, want := range []int{1, 1, 3} { // there are n workers, and soon twice as many
			j, began := journal(), time.Now()
			j.fleet.seenOld = began
			done := make(chan error, 1)
			go func() { done <- j.begin(t.Context()) }()
			<-time.After(time.Second / 4)
			others(t, env, 1)
			err, took := <-done, time.Since(began)
			if err != nil || j.share != want || j.fleet.share != want || !j.old || j.locks == nil || !slices.Equal(j.journaled, []string{"t"}) {
				t.Errorf("beside %d workers: %v, share %d, old %t, journals of %v", n, err, j.share, j.old, j.journaled)
			}
			if (took >= time.Second/2 && took <= time.Second) != (n > 1) {
				t.Errorf("beside %d workers: it took %v", n, took)
			}
		}
		ended, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if err := journal().begin(ended); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Millisecond {
			t.Errorf("its context ends: %v after %v", err, time.Since(began))
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := journal().begin(t.Context()); !errors.Is(err, txn.ErrClosed) {
			t.Errorf("the client is closed: %v", err)
		}
	})
}

// TestRunOfAJournal: n workers read the journal, and look for a table to sweep, as often as one. They end with their
// context, and with the client.
func TestRunOfAJournal(t *testing.T) {
	long.RacedAtNight(t)
	search := func(c *txn.Client) Search {
		return Search{Client: c, Tables: []string{"t"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler)}
	}
	for _, workers := range []int{1, 3} {
		inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
			others(t, env, workers)
			j := newJournal(&Scanner{}, search(c), time.Second, time.Minute, 10, 1)
			done := make(chan error, 1)
			go func() { done <- errors.Join(j.begin(t.Context()), j.run(t.Context())) }()
			<-time.After(time.Minute)
			faults.Reset()
			<-time.After(time.Hour)
			synctest.Wait()
			n := faults.Count()
			for step, every := range map[txntest.Step]int{txntest.StepJournalRead: 1, txntest.StepSweep: 12} {
				if intervals := 3600 / every / workers; n[step] < intervals-1 || n[step] > 2*intervals+1 {
					t.Errorf("one of %d workers sent %d requests of %q in an hour, want about one in %d s", workers, n[step], step, every*workers)
				}
			}
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; !errors.Is(err, txn.ErrClosed) {
				t.Errorf("the client was closed: %v", err)
			}
		})
	}
	for _, journaled := range []bool{true, false} {
		opts := []txntest.Option{txntest.WithoutJournal()}
		if journaled {
			opts = nil
		}
		inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, _ *txntest.Faults) {
			observed(t, env.Client, "a")
			j := newJournal(&Scanner{}, search(c), time.Second, time.Minute, 10, 1)
			began, ended := 0, 0
			j.search.Offer = func(ctx context.Context, _ changes.Notification, _ func()) bool {
				began++
				<-ctx.Done()
				<-time.After(time.Second)
				ended++
				return true
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- errors.Join(j.begin(ctx), j.run(ctx)) }()
			<-time.After(time.Minute)
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) || began != ended || (began > 0) != journaled {
				t.Errorf("its context has ended: %v, with %d of %d offers", err, ended, began)
			}
		}, opts...)
	}
}

// TestLongWaits: a worker that waits for long looks at another one once a minute, or less often if there are many.
func TestLongWaits(t *testing.T) {
	for share, every := range map[int]time.Duration{100: time.Minute, 200: 100 * time.Second} {
		inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
			others(t, env, 1)
			workers, err := admin.Workers(t.Context(), env.Client)
			if err != nil {
				t.Fatal(err)
			}
			j := &journal{search: Search{Client: c}, least: 12 * time.Second, most: 12 * time.Second, fleet: fleet{share: share, next: workers[0].Owner}}
			began := time.Now()
			if err := j.wait(t.Context()); err != nil {
				t.Error(err)
			}
			took := time.Since(began)
			if n := faults.Count()[txntest.StepToken]; n != int((took-j.least-1)/every) {
				t.Errorf("%d workers: %d looks in %v, want one in %v", share, n, took, every)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := j.wait(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != took+time.Second {
				t.Errorf("its context has ended: %v after %v", err, time.Since(began)-took)
			}
		})
	}
}

// TestReadOfAJournal: a read offers what it finds, forgets that a table was missing, and says what it could not read, except
// that a table is missing.
func TestReadOfAJournal(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		observed(t, env.Client, "a", "b")
		ctx, cancel := context.WithCancel(t.Context())
		var offers []string
		j := newJournal(&Scanner{}, Search{Client: c, Logger: slog.New(slog.DiscardHandler), Offer: func(_ context.Context, n changes.Notification, _ func()) bool {
			offers = append(offers, n.Cell.Row)
			return true
		}}, time.Second, time.Minute, 10, 1)
		broken := false
		failing := faults.On("a read", func(c txntest.Call) bool { return broken && c.Table == "t" }, txntest.DropRequest, 0)
		read := func(when string, nothing, missing, fails bool, n int64) {
			t.Helper()
			j.scanner.notifications.Store(0)
			_, got, failed := j.read(ctx, []string{"t"}, 0, 3, 3)
			if _, known := j.missing.Load("t"); got != nothing || known != missing || (failed != nil) != fails || j.scanner.notifications.Load() != n {
				t.Errorf("%s: nothing: %t, missing: %t, %v, %d notifications", when, got, known, failed, j.scanner.notifications.Load())
			}
			synctest.Wait()
		}
		j.missing.Store("t", true)
		read("twice", false, false, false, 2)
		read("twice", false, false, false, 2)
		if slices.Sort(offers); !slices.Equal(offers, []string{"a", "b"}) {
			t.Errorf("offered %q", offers)
		}
		broken = true
		read("the table does not answer", true, false, true, 0)
		<-failing.Fired()
		broken = false
		if err := env.Admin.DeleteTable(t.Context(), "t"); err != nil {
			t.Fatal(err)
		}
		read("the table is deleted", true, true, false, 0)
		cancel()
		j.offering.Wait()
	}, txntest.WithoutCheck())
}

// TestTurns: which parts of the journal a turn reads, and whether it asks to be alone.
func TestTurns(t *testing.T) {
	inTable(t, func(t *testing.T, env *txntest.Env, c *txn.Client, faults *txntest.Faults) {
		observed(t, env.Client, "a")
		reads := func(f func()) (keys []string) {
			t.Helper()
			faults.Reset()
			f()
			for _, call := range faults.Calls() {
				if call.Step == txntest.StepJournalRead {
					keys = append(keys, fmt.Sprint(call.Request.(*btpb.ReadRowsRequest).GetRows().GetRowRanges()))
				}
			}
			slices.Sort(keys)
			return keys
		}
		pending := func(first, parts, of int) []string {
			return reads(func() {
				for part := first; part < first+parts; part++ {
					for _, err := range changes.Pending(t.Context(), c, []string{"t"}, changes.Part{N: part, Of: of}) {
						if err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		}
		refused := env.NewClient(txn.Config{TokenTTL: -1}, txntest.Intercept(func(call txntest.Call) error {
			if call.Step == txntest.StepJournalRead {
				return status.Error(codes.PermissionDenied, "refused on purpose")
			}
			return nil
		})...)
		name := fmt.Sprintf("journal/%x", sha256.Sum256([]byte(`["t"] ["o"]`)))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for when, tt := range map[string]struct {
			ctx    context.Context
			fails  bool
			share  int // 0: 3
			busy   bool
			whole  time.Duration // since
			cost   time.Duration
			free   bool
			err    error
			tables []string
			reads  []string
			asked  []string      // without the owner
			left   time.Duration // since a turn has read the whole
		}{
			"no table":                      {},
			"idle":                          {tables: []string{"t"}, reads: pending(0, 1, 1)},
			"idle, another one reads":       {tables: []string{"t"}, cost: longRead, asked: []string{"acquire 1m0s"}},
			"idle, alone":                   {tables: []string{"t"}, cost: longRead, free: true, reads: pending(0, 1, 1), asked: []string{"acquire 1m0s", "release"}},
			"idle, a long one":              {tables: []string{"t"}, cost: 3 * time.Minute, free: true, reads: pending(0, 16, 16), asked: []string{"acquire 3m0s", "release"}},
			"idle, a very long one":         {tables: []string{"t"}, cost: time.Hour, free: true, reads: pending(0, 16, 16), asked: []string{"acquire 10m0s", "release"}},
			"idle, locks do not answer":     {tables: []string{"t"}, cost: longRead, err: errors.New("x"), reads: pending(0, 1, 1), asked: []string{"acquire 1m0s", "release"}},
			"idle, no other worker":         {share: 1, tables: []string{"t"}, cost: longRead, reads: pending(0, 1, 1)},
			"busy":                          {tables: []string{"t"}, busy: true, whole: 36*time.Second - 1, cost: longRead, reads: pending(1, 1, 3), left: 36*time.Second - 1},
			"busy for long":                 {tables: []string{"t"}, busy: true, whole: 36 * time.Second, reads: pending(0, 1, 1)},
			"busy for long, not alone":      {tables: []string{"t"}, busy: true, whole: 36 * time.Second, cost: longRead, reads: pending(1, 1, 3), asked: []string{"acquire 1m0s"}, left: 24 * time.Second},
			"idle, alone, it fails":         {fails: true, tables: []string{"t"}, cost: longRead, free: true, asked: []string{"acquire 1m0s", "release"}},
			"idle, alone, its context ends": {ctx: ended, tables: []string{"t"}, cost: longRead, free: true, asked: []string{"acquire 1m0s", "release"}},
		} {
			j := newJournal(&Scanner{}, Search{Client: c, Tables: []string{"t"}, Observers: []string{"o"}, Logger: slog.New(slog.DiscardHandler), Offer: func(context.Context, changes.Notification, func()) bool { return false }}, time.Second, time.Minute, 10, 2)
			locks := &recordedLocks{began: time.Now(), free: tt.free, err: tt.err}
			j.locks, j.fleet, j.journaled, j.busy, j.cost, j.rest = locks, fleet{share: max(tt.share, 3-2*tt.share), rank: 1, counted: time.Now()}, tt.tables, tt.busy, tt.cost, time.Hour
			j.whole = time.Now().Add(-tt.whole)
			ctx, stop := context.WithCancel(t.Context())
			if tt.ctx != nil {
				ctx = tt.ctx
			}
			if tt.fails {
				j.search.Client = refused
			}
			got := reads(func() {
				if err := j.turn(ctx); (err != nil) != (tt.fails || tt.ctx != nil) {
					t.Errorf("%s: %v", when, err)
				}
			})
			stop()
			j.offering.Wait()
			if !slices.Equal(got, tt.reads) && tt.ctx == nil {
				t.Errorf("%s: read %v, want %v", when, got, tt.reads)
			}
			var asked []string
			for _, a := range locks.asked {
				f := strings.Fields(a)
				if f[2] != name || len(f[3]) < 26 {
					t.Errorf("%s: %s", when, a)
				}
				asked = append(asked, strings.TrimSpace(f[1]+" "+strings.TrimSuffix(strings.Join(f[4:], " "), "true <nil>")))
			}
			if !slices.Equal(asked, tt.asked) {
				t.Errorf("%s: asked %q, want %q", when, asked, tt.asked)
			}
			if n := int(j.scanner.reads.Load()); n != min(len(tt.reads), 1) && tt.ctx == nil && !tt.fails || len(tt.tables) > 0 && len(tt.reads) == 0 && tt.ctx == nil && !tt.fails && j.rest != 0 {
				t.Errorf("%s: %d reads, rest %v", when, n, j.rest)
			}
			if tt.reads != nil && tt.left == 0 {
				tt.cost = 0 // the whole journal was read at once
			}
			if j.cost != tt.cost && tt.tables != nil {
				t.Errorf("%s: the whole takes %v, want %v", when, j.cost, tt.cost)
			}
			if left := time.Since(j.whole); left != tt.left && tt.reads != nil {
				t.Errorf("%s: the last whole read was %v ago, want %v", when, left, tt.left)
			}
		}
	})
}

// TestPatienceOfAJournal: how long a page may take follows from the last complete read, and from how long a
// part has been late.
func TestPatienceOfAJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ pace, cost, late, want time.Duration }{
			{0, 0, 0, firstPatience}, {1, 0, 0, time.Second}, {time.Minute, 0, 0, 45 * time.Second}, {1, time.Minute, 0, 45 * time.Second},
			{1, 0, 9 * time.Second, time.Second}, {1, 0, 30 * time.Second, 3 * time.Second}, {1, 0, time.Hour, maxTurn},
		} {
			j := &journal{pace: tt.pace, cost: tt.cost}
			if tt.late > 0 {
				j.late = time.Now().Add(-tt.late)
			}
			if got := j.patience(4); got != tt.want {
				t.Errorf("%+v: %v", tt, got)
			}
		}
	})
}

// TestReleaseOfAJournal: after a read that took long, a worker keeps its lock for the rest of all workers. If there is none,
// or the read failed, it releases the lock.
func TestReleaseOfAJournal(t *testing.T) {
	for _, tt := range []struct {
		rest time.Duration
		err  error
		want string
	}{{time.Millisecond, nil, "acquire 1ms"}, {time.Millisecond - 1, nil, "release"}, {time.Hour, errors.New("x"), "release"}} {
		locks := &recordedLocks{began: time.Now(), free: true}
		j := &journal{locks: locks, fleet: fleet{share: 2}, cost: longRead, threads: 1}
		release, ok := j.alone(t.Context())
		j.rest = tt.rest
		release(tt.err)
		if got := strings.Fields(locks.asked[len(locks.asked)-1]); !ok || len(locks.asked) != 2 || !strings.HasPrefix(got[1]+" "+got[4], tt.want) {
			t.Errorf("rest %v, %v: %t, %q", tt.rest, tt.err, ok, locks.asked)
		}
	}
}
