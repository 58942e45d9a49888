package tso_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestRoundTrips is the budget of the package documentation.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})

		if got := h.Ask(t.Context(), a); got != tsotest.Now() {
			t.Errorf("first timestamp %d at %d", got, tsotest.Now())
		}
		e.Expect("ReadRows:2 MutateRow:1 CheckAndMutateRow:2") // read, confirm clock, initialise, reserve

		for range 10 { // a lone process, under load
			h.Ask(t.Context(), a)
			e.Expect("CheckAndMutateRow:1")
		}
		for range 10 { // a lone process, now and then
			tsotest.Advance(time.Second)
			if got := h.Ask(t.Context(), a); got != tsotest.Now() {
				t.Errorf("%d at %d", got, tsotest.Now())
			}
			e.Expect("CheckAndMutateRow:1")
		}

		h.Ask(t.Context(), b)
		e.Expect("ReadRows:1 CheckAndMutateRow:1") // an initialised row
		tsotest.Advance(time.Second)
		h.Ask(t.Context(), a)
		e.Expect("CheckAndMutateRow:1") // a row below the clock: b does not matter
		h.Ask(t.Context(), b)
		e.Expect("CheckAndMutateRow:1 ReadModifyWriteRow:1") // b notices a: fails and increments
		h.Ask(t.Context(), a)
		e.Expect("CheckAndMutateRow:1 ReadModifyWriteRow:1") // a notices b
		for range 10 {                                       // shared and busy: the clock is never far
			h.Ask(t.Context(), b)
			e.Expect("ReadModifyWriteRow:1")
			h.Ask(t.Context(), a)
			e.Expect("ReadModifyWriteRow:1")
		}
		for range 10 { // shared and slow
			for _, d := range []*tso.Direct{a, b} {
				tsotest.Advance(time.Second)
				if got := h.Ask(t.Context(), d); got != tsotest.Now() {
					t.Errorf("%d at %d", got, tsotest.Now())
				}
				e.Expect("CheckAndMutateRow:1")
			}
		}

		// b falls silent: a finds out by its next increment.
		h.Ask(t.Context(), a)
		h.Ask(t.Context(), a)
		e.Counted()
		h.Ask(t.Context(), a)
		e.Expect("CheckAndMutateRow:1")

		tsotest.Advance(2 * time.Minute) // longer than MaxStep: confirm the clock
		if got := h.Ask(t.Context(), a); got != tsotest.Now() {
			t.Errorf("%d at %d", got, tsotest.Now())
		}
		e.Expect("ReadRows:1 MutateRow:1 CheckAndMutateRow:1")
		e.CheckRow(h.Highest())
	})
}

// TestNoOvershootAfterStall lets many processes come back from a stall at once,
// all with the same idea of the row: the oracle ends at the clock, not beyond.
func TestNoOvershootAfterStall(t *testing.T) {
	long.RacedAtNight(t)
	for _, stall := range []time.Duration{30 * time.Second, 30 * time.Minute} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			const processes = 8
			var ds []*tso.Direct
			for range processes {
				ds = append(ds, e.Direct(tso.DirectConfig{}))
			}
			warm(t, e, ds...)
			// Once around more, so that each has seen the others.
			warm(t, e, ds...)
			for _, shared := range []bool{true, false} {
				if !shared { // fresh processes compare first
					for i := range ds {
						ds[i] = e.Direct(tso.DirectConfig{})
					}
				}
				tsotest.Advance(stall)
				// Hold the first write of each process, so that all have decided.
				method := tsotest.CheckAndMutate
				if shared && stall > time.Minute { // longer than MaxStep
					method = tsotest.ReadModifyWrite
				}
				g := tsotest.NewGate(method, false)
				e.On(g.Hook)
				var rs []<-chan tsotest.Result
				for _, d := range ds {
					rs = append(rs, tsotest.Async(t.Context(), d))
				}
				for range processes {
					<-g.Held
				}
				close(g.Open)
				var highest tso.Timestamp
				for _, c := range rs {
					r := <-c
					if r.Err != nil {
						t.Fatal(r.Err)
					}
					highest = max(highest, r.TS)
				}
				e.On(nil)
				// Increments that found the row at the clock may add one each.
				if lag := tsotest.Now() - highest; lag > 0 || lag < -2*processes {
					t.Errorf("stall of %s, shared %t: highest %d at %d", stall, shared, highest, tsotest.Now())
				}
				e.CheckRow(highest)
			}
		})
	}
}

// TestRefusedInitialization: a process that may not initialize the row gets that error. It
// does not count in a row that has no value.
func TestRefusedInitialization(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		var refused atomic.Bool
		e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
			if method == tsotest.CheckAndMutate && !refused.Swap(true) {
				return nil, status.Error(codes.PermissionDenied, "injected: refused")
			}
			return call()
		})
		if ts, err := d.Timestamp(t.Context()); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%d, %v; want the refusal", ts, err)
		}
		e.Expect("ReadRows:2 MutateRow:1 CheckAndMutateRow:1") // read, confirm clock, initialize
		e.On(nil)
		h := tsotest.NewHistory(t)
		if got := h.Ask(t.Context(), d); got < tsotest.Now() {
			t.Errorf("%d at %d", got, tsotest.Now())
		}
	})
}

func TestInitRace(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		const processes = 6
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		e.On(g.Hook)
		h := tsotest.NewHistory(t)
		var wg sync.WaitGroup
		for range processes {
			d := e.Direct(tso.DirectConfig{})
			wg.Go(func() { h.Ask(t.Context(), d) })
		}
		for range processes {
			<-g.Held // all found the row missing
		}
		close(g.Open)
		wg.Wait()
		e.On(nil)
		// Who lost the race does not know the value: it increments, and compares nothing.
		if got, want := e.Counted(), fmt.Sprintf("CheckAndMutateRow:%d ", processes+1); !strings.Contains(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
		h.Check(processes)
		if h.Highest() < tsotest.Now() || h.Highest() > tsotest.Now()+2*processes {
			t.Errorf("highest %d at %d", h.Highest(), tsotest.Now())
		}
		e.CheckRow(h.Highest())
	})
}

func TestRowDeletedUnderUse(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
		for range 3 {
			h.Ask(t.Context(), a)
			h.Ask(t.Context(), b)
		}
		e.DeleteRow()
		tsotest.Advance(time.Second)
		h.Ask(t.Context(), a) // increments a missing cell first: 1 is never handed out
		e.CheckRow(h.Highest())
		h.Ask(t.Context(), b)
		e.DeleteRow()
		tsotest.Advance(time.Second)
		c := e.Direct(tso.DirectConfig{}) // finds nothing at all
		h.Ask(t.Context(), c)
		h.Ask(t.Context(), a)
		if h.Highest() < tsotest.Now() || h.Highest() > tsotest.Now()+10 {
			t.Errorf("highest %d at %d", h.Highest(), tsotest.Now())
		}
		e.CheckRow(h.Highest())
	})
}

// TestRowDeletedUnderUseAheadOfClock: what is known to have been handed out
// counts, not only the clock.
func TestRowDeletedUnderUseAheadOfClock(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		var off time.Duration
		d := e.Direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(off) }})
		h.Ask(t.Context(), d)
		off = 50 * time.Second
		ahead := h.Ask(t.Context(), d)
		off = 0
		e.DeleteRow()
		if got := h.Ask(t.Context(), d); got <= ahead {
			t.Errorf("%d after %d", got, ahead)
		}
		e.CheckRow(h.Highest())
	})
}

func TestClockBackAndForward(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		var log bytes.Buffer
		var off time.Duration
		h := tsotest.NewHistory(t)
		d := e.Direct(tso.DirectConfig{
			Clock:  func() time.Time { return time.Now().Add(off) },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		start := h.Ask(t.Context(), d)

		off = -time.Hour // back: continue one by one
		for i := range tso.Timestamp(3) {
			if got := h.Ask(t.Context(), d); got != start+1+i {
				t.Errorf("clock back: %d, want %d", got, start+1+i)
			}
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", &log)
		}
		off = 0
		tsotest.Advance(time.Minute / 2)
		off = time.Hour // ahead: Bigtable's clock counts
		for range 3 {
			tsotest.Advance(time.Second)
			if got := h.Ask(t.Context(), d); got != tsotest.Now() {
				t.Errorf("clock ahead: %d at %d", got, tsotest.Now())
			}
		}
		if n := strings.Count(log.String(), "clock of this machine differs"); n != 1 {
			t.Errorf("%d warnings, want 1: %s", n, &log)
		}
		off = 50 * time.Second // within MaxStep: followed, as documented
		if got := h.Ask(t.Context(), d); got != tsotest.Now()+50e6 {
			t.Errorf("clock ahead a little: %d at %d", got, tsotest.Now())
		}
		off = 0
		if got, want := h.Ask(t.Context(), d), tsotest.Now()+50e6+1; got != want {
			t.Errorf("clock right again: %d, want %d", got, want)
		}
		e.CheckRow(h.Highest())
	})
}

func TestClockOfAnotherProcessAhead(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		good := e.Direct(tso.DirectConfig{})
		bad := e.Direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(24 * time.Hour) }})
		for range 20 {
			tsotest.Advance(10 * time.Second)
			h.Ask(t.Context(), bad)
			h.Ask(t.Context(), good)
		}
		if h.Highest() > tsotest.Now()+10 {
			t.Errorf("the oracle follows the wrong clock: %d at %d", h.Highest(), tsotest.Now())
		}
		e.CheckRow(h.Highest())
	})
}

func TestModeError(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		inUse, fresh := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
		other := e.Direct(tso.DirectConfig{})
		warm(t, e, inUse, other) // so a failing compare shows inUse and other the new mode
		warm(t, e, inUse)        // and a failing increment shows it to inUse
		e.Put([]byte("served"))
		for name, d := range map[string]*tso.Direct{"in use": inUse, "compares": other, "fresh": fresh} {
			for range 2 {
				_, err := d.Timestamp(t.Context())
				var mode *tso.ModeError
				if !errors.As(err, &mode) || !errors.Is(err, tso.ErrMode) || mode.Mode != "served" || mode.Row != "oracle" {
					t.Fatalf("%s: %v", name, err)
				}
				for _, part := range []string{`"oracle"`, `"served"`, "percctl tso mode"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%s: error does not say %s: %v", name, part, err)
					}
				}
			}
		}
		row, err := e.Table("percolator").ReadRow(t.Context(), "oracle", bigtable.RowFilter(bigtable.ColumnFilter("direct")))
		if err != nil || len(row["tso"]) != 1 || string(row["tso"][0].Value) != "served" {
			t.Errorf("the row was changed: %v, %v", row, err)
		}
		e.PutInt(int64(tsotest.Now() + 100)) // back in direct mode
		for _, d := range []*tso.Direct{inUse, other, fresh} {
			warm(t, e, d)
		}
	})
}

func TestCorruptError(t *testing.T) {
	for _, value := range []int64{-1 << 63, -1 << 40, int64(tso.Max) + 1, 1<<63 - 1} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			inUse, fresh := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
			warm(t, e, inUse)
			e.PutInt(value)
			for _, p := range []struct {
				name string
				*tso.Direct
			}{
				{"fresh", fresh},  // reads
				{"in use", inUse}, // compares, then increments: changes it by one, once
			} {
				name := p.name
				_, err := p.Timestamp(t.Context())
				var corrupt *tso.CorruptError
				if !errors.As(err, &corrupt) || !errors.Is(err, tso.ErrCorrupt) || corrupt.Row != "oracle" || corrupt.Value != value {
					t.Fatalf("%s, %d: %v", name, value, err)
				}
				if !strings.Contains(err.Error(), "stop every client") {
					t.Errorf("error does not say what to do: %v", err)
				}
			}
			e.Counted()
			if _, err := inUse.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
				t.Errorf("again: %v", err)
			}
			e.Expect("ReadRows:1")
		})
	}
}

// TestRowRestoredFromBackup: a row below what this process was given must not
// hand those out again.
func TestRowRestoredFromBackup(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		h := tsotest.NewHistory(t)
		a, b := e.Direct(tso.DirectConfig{}), e.Direct(tso.DirectConfig{})
		for range 3 {
			h.Ask(t.Context(), a)
			h.Ask(t.Context(), b)
		}
		e.PutInt(int64(tsotest.Now() - 1e6))
		for range 2 { // by increment, then by reading
			if _, err := a.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) || !strings.Contains(err.Error(), "handed out already") {
				t.Fatalf("got %v", err)
			}
		}
		e.PutInt(int64(h.Highest() - 1)) // b has the highest, by increment
		if _, err := b.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
		e.PutInt(int64(h.Highest()))
		h.Ask(t.Context(), a)
		h.Ask(t.Context(), b)
		e.PutInt(int64(h.Highest() - 1))
		tsotest.Advance(time.Second) // b would move the row up to the clock
		if _, err := b.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestTimestampsAreExhausted(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		e.PutInt(int64(tso.Max) - 1)
		d := e.Direct(tso.DirectConfig{})
		if got, err := d.Timestamp(t.Context()); err != nil || got != tso.Max {
			t.Fatalf("got %d, %v", got, err)
		}
		if got, err := d.Timestamp(t.Context()); !errors.Is(err, tso.ErrExhausted) {
			t.Errorf("after the last: %d, %v", got, err)
		}
	})
}

func TestNotInitialized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := tsotest.NewEmulator(t)
		e.CreateTable("nofamily")
		for _, table := range []string{"nofamily", "notable"} {
			d := tso.NewDirect(e.Table(table), tso.DirectConfig{})
			_, err := d.Timestamp(t.Context())
			if !errors.Is(err, tso.ErrNotInitialized) {
				t.Fatalf("%s: %v", table, err)
			}
			for _, part := range []string{"percctl table init", "admin.InitTable", `"tso"`} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: error does not say %s: %v", table, part, err)
				}
			}
			if s := d.Stats(); s.Retries != 0 {
				t.Errorf("%s: retried %d times", table, s.Retries)
			}
		}
	})
}

func TestConfiguredRowAndFamily(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		e.CreateTable("other", "f")
		d := tso.NewDirect(e.Table("other"), tso.DirectConfig{Row: "r", Family: "f"})
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		row, err := e.Table("other").ReadRow(context.Background(), "r")
		if err != nil || len(row["f"]) != 2 {
			t.Errorf("%v, %v", row, err)
		}
	})
}
