package tso_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// busyRow delays each request by a round trip, up to a tenth more or less. The row takes one
// mutation after the other.
func busyRow(seed uint64, mutation time.Duration) tsotest.Hook {
	var mu sync.Mutex
	var free time.Time
	rng := rand.New(rand.NewPCG(seed, 1))
	return func(_ context.Context, method string, call func() (any, error)) (any, error) {
		const trip = 5 * time.Millisecond
		mu.Lock()
		half := time.Duration((0.45 + rng.Float64()/10) * float64(trip))
		mu.Unlock()
		<-time.After(half)
		if method != tsotest.ReadRows && mutation > 0 {
			mu.Lock()
			if now := time.Now(); free.Before(now) {
				free = now
			}
			free = free.Add(mutation)
			wait := time.Until(free)
			mu.Unlock()
			<-time.After(wait)
		}
		res, err := call()
		<-time.After(half)
		return res, err
	}
}

// However many processes share the row, timestamps are close to the clock, in order, and cost
// hardly more than one request a batch. Before the fix, each batch of a busy process cost two
// requests, and oracle time fell behind by a second a second.
func TestBusyProcesses(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	for _, tt := range []struct {
		processes int
		mutation  time.Duration // that the row takes
		skew      time.Duration // between the first and the last process's clock
		perBatch  float64
	}{
		{1, 0, 0, 1.02},
		{2, 0, 0, 1.1},
		{4, 0, 0, 1.1},
		{16, 0, 0, 1.1},
		{64, 0, 0, 1.1},
		{40, time.Millisecond, 0, 1.03},
		{64, time.Millisecond, 0, 1.05},
		{16, 0, 40 * time.Millisecond, 1.1},
		{32, time.Millisecond, 40 * time.Millisecond, 1.08},
	} {
		t.Run(fmt.Sprintf("%d processes, %v for a mutation, %v of skew", tt.processes, tt.mutation, tt.skew), func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				const callers = 16
				lasts := 1500 * time.Millisecond
				if tt.mutation > 0 {
					lasts = 5 * time.Second // about 70 batches of a process
				}
				h := tsotest.NewHistory(t)
				var ds []*tso.Direct
				for i := range tt.processes {
					off := tt.skew * time.Duration(i) / time.Duration(tt.processes)
					ds = append(ds, e.Direct(tso.DirectConfig{Clock: func() time.Time { return time.Now().Add(off) }}))
				}
				warm(t, e, ds...)
				e.On(busyRow(uint64(tt.processes), tt.mutation))
				before := tso.DirectStats{}
				for _, d := range ds {
					s := d.Stats()
					before.Batches, before.RPCs = before.Batches+s.Batches, before.RPCs+s.RPCs
				}
				began := time.Now()
				var worst atomic.Int64
				var all sync.WaitGroup
				for _, d := range ds {
					for range callers {
						all.Go(func() {
							for time.Since(began) < lasts {
								ts := h.Ask(t.Context(), d)
								// The first answers show the time in which nothing was asked.
								if lag := time.Since(ts.Time()); time.Since(began) > 200*time.Millisecond {
									for old := worst.Load(); int64(lag) > old && !worst.CompareAndSwap(old, int64(lag)); old = worst.Load() {
									}
								}
								if ahead := time.Until(ts.Time()); ahead > tt.skew+time.Millisecond {
									t.Errorf("%v ahead of the clock", ahead)
								}
							}
						})
					}
				}
				all.Wait()
				e.On(nil)
				after := tso.DirectStats{}
				for _, d := range ds {
					s := d.Stats()
					after.Batches, after.RPCs = after.Batches+s.Batches, after.RPCs+s.RPCs
				}
				perBatch := float64(after.RPCs-before.RPCs) / float64(after.Batches-before.Batches)
				t.Logf("%v behind at worst, %.3f requests a batch, %d batches", time.Duration(worst.Load()), perBatch, after.Batches-before.Batches)
				if lag := time.Duration(worst.Load()); lag > 100*time.Millisecond || perBatch > tt.perBatch {
					t.Errorf("%v behind at worst, %.3f requests a batch; want at most 100ms, %v", lag, perBatch, tt.perBatch)
				}
				e.CheckRow(h.Highest())
			})
		})
	}
}

// A row that cannot follow the clock any more is reported, once a minute.
func TestOracleAtItsLimit(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		var log bytes.Buffer
		d := e.Direct(tso.DirectConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		warm(t, e, d)
		said := func() int { return strings.Count(log.String(), "behind the clock: the oracle's row is at its limit") }
		for _, tt := range []struct {
			mutation time.Duration
			seconds  int
			want     int
		}{
			{5 * time.Millisecond, 30, 0},
			{150 * time.Millisecond, 5, 0}, // a tablet moves
			{5 * time.Millisecond, 5, 0},
			{150 * time.Millisecond, 50, 1},
			{150 * time.Millisecond, 50, 2},
		} {
			e.On(busyRow(1, tt.mutation))
			for began := time.Now(); time.Since(began) < time.Duration(tt.seconds)*time.Second; {
				if _, err := d.Timestamp(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if said() != tt.want {
				t.Errorf("%v for a mutation, %d s: said %d times, want %d:\n%s", tt.mutation, tt.seconds, said(), tt.want, &log)
			}
		}
		e.On(nil)
	})
}

// What doctor and top say of a row in direct mode.
func TestDirectLag(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		d := e.Direct(tso.DirectConfig{})
		warm(t, e, d)
		table := e.Table("percolator")
		look := func(wantBusy bool, least, most time.Duration) {
			t.Helper()
			lag, busy, err := tso.DirectLag(t.Context(), table, tso.RowConfig{})
			if err != nil || busy != wantBusy || lag < least || lag > most {
				t.Errorf("%v, %t, %v; want %t, from %v to %v", lag, busy, err, wantBusy, least, most)
			}
		}
		tsotest.Advance(time.Minute)
		look(false, 0, 0)
		for _, mutation := range []time.Duration{time.Millisecond, 150 * time.Millisecond} {
			var stop atomic.Bool
			e.On(busyRow(1, mutation))
			var asking sync.WaitGroup
			for range 2 {
				d := e.Direct(tso.DirectConfig{})
				asking.Go(func() {
					for !stop.Load() {
						if _, err := d.Timestamp(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			tsotest.Advance(2 * time.Second)
			if mutation == time.Millisecond {
				look(true, 0, 20*time.Millisecond)
			} else {
				look(true, 100*time.Millisecond, time.Second)
			}
			stop.Store(true)
			asking.Wait()
			e.On(nil)
		}
		e.SetMode(tso.ModeServed)
		look(false, 0, 0)
	})
}
