package tso_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// TestRoundTrips is the budget of the package documentation.
func TestRoundTrips(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})

		if got := h.ask(t.Context(), a); got != now() {
			t.Errorf("first timestamp %d at %d", got, now())
		}
		e.expect("ReadRows:2 MutateRow:1 CheckAndMutateRow:2") // read, confirm clock, initialise, reserve

		for range 10 { // a lone process, under load
			h.ask(t.Context(), a)
			e.expect("CheckAndMutateRow:1")
		}
		for range 10 { // a lone process, now and then
			advance(time.Second)
			if got := h.ask(t.Context(), a); got != now() {
				t.Errorf("%d at %d", got, now())
			}
			e.expect("CheckAndMutateRow:1")
		}

		h.ask(t.Context(), b)
		e.expect("ReadRows:1 CheckAndMutateRow:1") // an initialised row
		advance(time.Second)
		h.ask(t.Context(), a)
		e.expect("CheckAndMutateRow:2 ReadModifyWriteRow:1") // a notices b: fails, increments, catches up
		h.ask(t.Context(), b)
		e.expect("CheckAndMutateRow:1 ReadModifyWriteRow:1") // b notices a; no lag
		for range 10 {                                       // shared and busy: the clock is never far
			h.ask(t.Context(), a)
			e.expect("ReadModifyWriteRow:1")
			h.ask(t.Context(), b)
			e.expect("ReadModifyWriteRow:1")
		}
		for range 10 { // shared and slow: increment and catch up
			for _, d := range []*tso.Direct{a, b} {
				advance(time.Second)
				if got := h.ask(t.Context(), d); got != now() {
					t.Errorf("%d at %d", got, now())
				}
				e.expect("CheckAndMutateRow:1 ReadModifyWriteRow:1")
			}
		}

		// b falls silent: a finds out by its next increment.
		h.ask(t.Context(), a)
		h.ask(t.Context(), a)
		e.counted()
		h.ask(t.Context(), a)
		e.expect("CheckAndMutateRow:1")

		advance(2 * time.Minute) // longer than MaxStep: confirm the clock
		if got := h.ask(t.Context(), a); got != now() {
			t.Errorf("%d at %d", got, now())
		}
		e.expect("ReadRows:1 MutateRow:1 CheckAndMutateRow:1")
		e.checkRow(h.highest())
	})
}

// TestNoOvershootAfterStall lets many processes come back from a stall at once,
// all with the same idea of the row: the oracle ends at the clock, not beyond.
func TestNoOvershootAfterStall(t *testing.T) {
	for _, stall := range []time.Duration{30 * time.Second, 30 * time.Minute} {
		bubble(t, func(t *testing.T, e *emulator) {
			const processes = 8
			var ds []*tso.Direct
			for range processes {
				ds = append(ds, e.direct(tso.DirectConfig{}))
			}
			warm(t, e, ds...)
			// Once around more, so that each has seen the others.
			warm(t, e, ds...)
			for _, shared := range []bool{true, false} {
				if !shared { // fresh processes compare first
					for i := range ds {
						ds[i] = e.direct(tso.DirectConfig{})
					}
				}
				advance(stall)
				// Hold everybody's first write, so that all have decided.
				method := cam
				if shared {
					method = rmw
				}
				g := newGate(method, false)
				e.on(g.hook)
				var rs []<-chan result
				for _, d := range ds {
					rs = append(rs, async(t.Context(), d))
				}
				for range processes {
					<-g.held
				}
				close(g.open)
				var highest tso.Timestamp
				for _, c := range rs {
					r := <-c
					if r.err != nil {
						t.Fatal(r.err)
					}
					highest = max(highest, r.ts)
				}
				e.on(nil)
				// Increments that found the row at the clock may add one each.
				if lag := now() - highest; lag > 0 || lag < -2*processes {
					t.Errorf("stall of %s, shared %t: highest %d at %d", stall, shared, highest, now())
				}
				e.checkRow(highest)
			}
		})
	}
}

func TestInitRace(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		const processes = 6
		g := newGate(cam, false)
		e.on(g.hook)
		h := newHistory(t)
		var wg sync.WaitGroup
		for range processes {
			d := e.direct(tso.DirectConfig{})
			wg.Go(func() { h.ask(t.Context(), d) })
		}
		for range processes {
			<-g.held // all found the row missing
		}
		close(g.open)
		wg.Wait()
		e.on(nil)
		h.check(processes)
		if h.highest() < now() || h.highest() > now()+2*processes {
			t.Errorf("highest %d at %d", h.highest(), now())
		}
		e.checkRow(h.highest())
	})
}

func TestRowDeletedUnderUse(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
		for range 3 {
			h.ask(t.Context(), a)
			h.ask(t.Context(), b)
		}
		e.deleteRow()
		advance(time.Second)
		h.ask(t.Context(), a) // increments a missing cell first: 1 is never handed out
		e.checkRow(h.highest())
		h.ask(t.Context(), b)
		e.deleteRow()
		advance(time.Second)
		c := e.direct(tso.DirectConfig{}) // finds nothing at all
		h.ask(t.Context(), c)
		h.ask(t.Context(), a)
		if h.highest() < now() || h.highest() > now()+10 {
			t.Errorf("highest %d at %d", h.highest(), now())
		}
		e.checkRow(h.highest())
	})
}

// TestRowDeletedUnderUseAheadOfClock: what is known to have been handed out
// counts, not only the clock.
func TestRowDeletedUnderUseAheadOfClock(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		var off time.Duration
		d := e.direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(off) }})
		h.ask(t.Context(), d)
		off = 50 * time.Second
		ahead := h.ask(t.Context(), d)
		off = 0
		e.deleteRow()
		if got := h.ask(t.Context(), d); got <= ahead {
			t.Errorf("%d after %d", got, ahead)
		}
		e.checkRow(h.highest())
	})
}

func TestClockBackAndForward(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		var log bytes.Buffer
		var off time.Duration
		h := newHistory(t)
		d := e.direct(tso.DirectConfig{
			Clock:  func() time.Time { return time.Now().Add(off) },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		start := h.ask(t.Context(), d)

		off = -time.Hour // back: go on one by one
		for i := range tso.Timestamp(3) {
			if got := h.ask(t.Context(), d); got != start+1+i {
				t.Errorf("clock back: %d, want %d", got, start+1+i)
			}
		}
		if log.Len() > 0 {
			t.Errorf("logged: %s", &log)
		}
		off = 0
		advance(time.Minute / 2)
		off = time.Hour // ahead: Bigtable's clock counts
		for range 3 {
			advance(time.Second)
			if got := h.ask(t.Context(), d); got != now() {
				t.Errorf("clock ahead: %d at %d", got, now())
			}
		}
		if n := strings.Count(log.String(), "clock of this machine differs"); n != 1 {
			t.Errorf("%d warnings, want 1: %s", n, &log)
		}
		off = 50 * time.Second // within MaxStep: followed, as documented
		if got := h.ask(t.Context(), d); got != now()+50e6 {
			t.Errorf("clock ahead a little: %d at %d", got, now())
		}
		off = 0
		if got, want := h.ask(t.Context(), d), now()+50e6+1; got != want {
			t.Errorf("clock right again: %d, want %d", got, want)
		}
		e.checkRow(h.highest())
	})
}

func TestClockOfAnotherProcessAhead(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		good := e.direct(tso.DirectConfig{})
		bad := e.direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(24 * time.Hour) }})
		for range 20 {
			advance(10 * time.Second)
			h.ask(t.Context(), bad)
			h.ask(t.Context(), good)
		}
		if h.highest() > now()+10 {
			t.Errorf("the oracle follows the wrong clock: %d at %d", h.highest(), now())
		}
		e.checkRow(h.highest())
	})
}

func TestModeError(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		inUse, fresh := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
		other := e.direct(tso.DirectConfig{})
		warm(t, e, inUse, other) // inUse now learns of the fence by a failing compare, other too
		warm(t, e, inUse)        // and inUse by a failing increment
		e.put([]byte("served"))
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
		row, err := e.table("percolator").ReadRow(t.Context(), "oracle", bigtable.RowFilter(bigtable.ColumnFilter("direct")))
		if err != nil || len(row["tso"]) != 1 || string(row["tso"][0].Value) != "served" {
			t.Errorf("the row was changed: %v, %v", row, err)
		}
		e.putInt(int64(now() + 100)) // back in direct mode
		for _, d := range []*tso.Direct{inUse, other, fresh} {
			warm(t, e, d)
		}
	})
}

func TestCorruptError(t *testing.T) {
	for _, value := range []int64{-1 << 63, -1 << 40, int64(tso.Max) + 1, 1<<63 - 1} {
		bubble(t, func(t *testing.T, e *emulator) {
			inUse, fresh := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
			warm(t, e, inUse)
			e.putInt(value)
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
			e.counted()
			if _, err := inUse.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
				t.Errorf("again: %v", err)
			}
			e.expect("ReadRows:1")
		})
	}
}

// TestRowRestoredFromBackup: a row below what this process was given must not
// hand those out again.
func TestRowRestoredFromBackup(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		h := newHistory(t)
		a, b := e.direct(tso.DirectConfig{}), e.direct(tso.DirectConfig{})
		for range 3 {
			h.ask(t.Context(), a)
			h.ask(t.Context(), b)
		}
		e.putInt(int64(now() - 1e6))
		for range 2 { // by increment, then by reading
			if _, err := a.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) || !strings.Contains(err.Error(), "handed out already") {
				t.Fatalf("got %v", err)
			}
		}
		e.putInt(int64(h.highest() - 1)) // b has the highest, by increment
		if _, err := b.Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
		e.putInt(int64(h.highest()))
		h.ask(t.Context(), a)
		h.ask(t.Context(), b)
	})
}

func TestTimestampsAreExhausted(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		e.putInt(int64(tso.Max) - 1)
		d := e.direct(tso.DirectConfig{})
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
		e := newEmulator(t)
		e.createTable("nofamily")
		for _, table := range []string{"nofamily", "notable"} {
			d := tso.NewDirect(e.table(table), tso.DirectConfig{})
			_, err := d.Timestamp(t.Context())
			if !errors.Is(err, tso.ErrNotInitialized) {
				t.Fatalf("%s: %v", table, err)
			}
			for _, part := range []string{"percctl table init", "txn.InitTable", `"tso"`} {
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
	bubble(t, func(t *testing.T, e *emulator) {
		e.createTable("other", "f")
		d := tso.NewDirect(e.table("other"), tso.DirectConfig{Row: "r", Family: "f"})
		if _, err := d.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		row, err := e.table("other").ReadRow(context.Background(), "r")
		if err != nil || len(row["f"]) != 2 {
			t.Errorf("%v, %v", row, err)
		}
	})
}
