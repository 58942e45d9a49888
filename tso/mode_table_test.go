package tso_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestChangesOfRow: what SetMode and Advance leave in the row, how long they watch it, with which requests,
// and what they return, also while other clients change the row.
func TestChangesOfRow(t *testing.T) {
	long.RacedAtNight(t)
	const v = tso.Timestamp(1_800_000_000_000_000)
	direct := func(v tso.Timestamp) func(e *tsotest.Emulator) {
		return func(e *tsotest.Emulator) { e.PutInt(int64(v)) }
	}
	// led: the lease of a server that died.
	led := func(lease time.Duration, limit tso.Timestamp) func(e *tsotest.Emulator) {
		return func(e *tsotest.Emulator) {
			e.PutInt(int64(limit))
			e.SetMode(tso.ModeServed)
			r := row.Open(e.Table("percolator"), "", "", 0)
			s, err := r.Read(e.T.Context())
			if err != nil {
				e.T.Fatal(err)
			}
			state := &tsopb.ServedState{Limit: int64(limit), LeaseUs: lease.Microseconds(), Leader: "x", Address: "x:1"}
			if lease == 0 {
				state.Released, state.LeaseUs = true, time.Minute.Microseconds()
			}
			if ok, err := r.Swap(e.T.Context(), s.Lease, format.Lease{Epoch: 5, Nonce: rand.Uint64()}, state); !ok || err != nil {
				e.T.Fatal(ok, err)
			}
			e.Counted()
		}
	}
	released := func(limit tso.Timestamp) func(e *tsotest.Emulator) { return led(0, limit) }
	mode := func(m tso.Mode) func(ctx context.Context, e *tsotest.Emulator) (bool, error) {
		return func(ctx context.Context, e *tsotest.Emulator) (bool, error) {
			return tso.SetMode(ctx, e.Table("percolator"), tso.RowConfig{}, m)
		}
	}
	toServed, toDirect := mode(tso.ModeServed), mode(tso.ModeDirect)
	advance := func(to tso.Timestamp) func(ctx context.Context, e *tsotest.Emulator) (bool, error) {
		return func(ctx context.Context, e *tsotest.Emulator) (bool, error) {
			return tso.Advance(ctx, e.Table("percolator"), tso.RowConfig{}, to)
		}
	}
	leads := func(name string) func(error) bool {
		return func(err error) bool {
			var l *tso.LeaderError
			return errors.As(err, &l) && *l == tso.LeaderError{Row: "oracle", Leader: name, Address: name + ":1"}
		}
	}
	says := func(text string) func(error) bool {
		return func(err error) bool { return strings.Contains(err.Error(), text) }
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	raises := func(e *tsotest.Emulator, n int) { e.PutInt(int64(v) + int64(n)*3) }
	takes := func(e *tsotest.Emulator, _ int) { led(time.Second, v)(e) }
	now := tso.Timestamp(0)
	tsotest.Bubble(t, func(*testing.T, *tsotest.Emulator) { now = tsotest.Now() })
	for _, tt := range []struct {
		name    string
		row     func(e *tsotest.Emulator)
		call    func(ctx context.Context, e *tsotest.Emulator) (bool, error)
		before  func(e *tsotest.Emulator, n int) // the n-th of the writes that change the mode or the value
		times   int                              // how often before runs
		fails   int                              // the n-th read that fails, with an error that passes
		lost    int                              // the n-th write that is lost
		twice   int                              // the n-th write that arrives twice
		changed bool
		err     func(error) bool
		after   tso.RowState
		took    time.Duration
		rpcs    string
	}{
		{name: "served", row: direct(v), call: toServed, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 1, Released: true}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "served at first", call: toServed, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: tso.Min, Epoch: 1, Released: true}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "served again", row: released(v), call: toServed, after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 5, Released: true, Lease: time.Minute, Leader: "x", Address: "x:1"}, rpcs: "ReadRows:1"},
		{name: "direct at first", call: toDirect, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: now}, rpcs: "ReadRows:3 MutateRow:1 CheckAndMutateRow:2"},
		{name: "direct again", row: direct(v), call: toDirect, after: tso.RowState{Mode: tso.ModeDirect, Limit: v}, rpcs: "ReadRows:1"},
		{name: "direct", row: released(v), call: toDirect, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 1, Epoch: 6}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "direct, at the last", row: released(tso.Max - 1), call: toDirect, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: tso.Max, Epoch: 6}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "direct, after the last", row: released(tso.Max), call: toDirect, err: is(tso.ErrExhausted), after: tso.RowState{Mode: tso.ModeServed, Limit: tso.Max, Epoch: 5, Released: true, Lease: time.Minute, Leader: "x", Address: "x:1"}, rpcs: "ReadRows:1"},
		{name: "direct after a leader died", row: led(3*time.Second, v), call: toDirect, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 1, Epoch: 6}, took: 3 * time.Second, rpcs: "ReadRows:4 CheckAndMutateRow:1"},
		{name: "direct after a short lease", row: led(25*time.Millisecond, v), call: toDirect, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 1, Epoch: 6}, took: 25 * time.Millisecond, rpcs: "ReadRows:4 CheckAndMutateRow:1"},
		{name: "a read of the lease fails", row: led(3*time.Second, v), call: toDirect, fails: 2, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 1, Epoch: 6}, took: 3 * time.Second, rpcs: "ReadRows:4 CheckAndMutateRow:1"},
		{name: "no such mode", row: direct(v), call: mode("x"), err: says(`no mode "x"`), after: tso.RowState{Mode: tso.ModeDirect, Limit: v}, rpcs: "ReadRows:1"},
		{name: "no mode", call: mode(""), err: says(`no mode ""`), rpcs: "ReadRows:1"},
		{name: "served, and the row moves once", row: direct(v), call: toServed, before: raises, times: 1, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 3, Epoch: 1, Released: true}, rpcs: "ReadRows:2 CheckAndMutateRow:2"},
		{name: "served, and the row moves three times", row: direct(v), call: toServed, before: raises, times: 3, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 9, Epoch: 1, Released: true}, rpcs: "ReadRows:4 CheckAndMutateRow:5"},
		// The fourth write is the lease for the attempts that follow.
		{name: "served, and the row moves all the time", row: direct(v), call: toServed, before: raises, times: 100, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 15 + 400_000, Epoch: 1, Released: true}, rpcs: "ReadRows:5 CheckAndMutateRow:6"},
		{name: "served, and the row moves up to the last", row: direct(tso.Max - 20), call: toServed, before: func(e *tsotest.Emulator, n int) { e.PutInt(int64(tso.Max) - 20 + int64(n)) }, times: 100, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: tso.Max, Epoch: 1, Released: true}, rpcs: "ReadRows:5 CheckAndMutateRow:6"},
		{name: "served by another client", row: direct(v), call: toServed, before: func(e *tsotest.Emulator, _ int) { released(v)(e) }, times: 1, after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 5, Released: true, Lease: time.Minute, Leader: "x", Address: "x:1"}, rpcs: "ReadRows:3 CheckAndMutateRow:1"},
		{name: "served, and the lease for more attempts is lost", row: direct(v), call: toServed, before: raises, times: 100, lost: 4, err: says("injected"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 12}, rpcs: "ReadRows:5 CheckAndMutateRow:4"},
		{name: "served, and the row moves, and a read fails", row: direct(v), call: toServed, before: raises, times: 1, fails: 2, err: says("injected"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 3}, rpcs: "ReadRows:3 CheckAndMutateRow:1"},
		{name: "served, and the row moves too fast", row: direct(v), call: toServed, before: func(e *tsotest.Emulator, n int) { e.PutInt(int64(v) + int64(n)*5_000_000) }, times: 100, err: says("another client changed the row"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 55_000_000}, rpcs: "ReadRows:12 CheckAndMutateRow:11"},
		{name: "served after other changes", row: direct(v), call: toServed, before: func(e *tsotest.Emulator, _ int) {
			released(v)(e)
			e.SetMode(tso.ModeDirect)
		}, times: 1, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 1, Epoch: 7, Released: true}, rpcs: "ReadRows:2 CheckAndMutateRow:2"},
		{name: "served by a write that arrives twice", row: direct(v), call: toServed, twice: 1, changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 1, Released: true}, rpcs: "ReadRows:3 CheckAndMutateRow:1"},
		{name: "direct by a write that arrives twice", row: released(v), call: toDirect, twice: 1, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 1, Epoch: 6}, rpcs: "ReadRows:2 CheckAndMutateRow:1"},
		{name: "direct by another client, and a read fails", row: released(v), call: toDirect, before: raises, times: 1, fails: 2, err: says("injected"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 3, Epoch: 5}, rpcs: "ReadRows:2 CheckAndMutateRow:1"},
		{name: "direct, and the caller has no time to watch", row: led(3*time.Second, v), call: func(ctx context.Context, e *tsotest.Emulator) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
			defer cancel()
			return toDirect(ctx, e)
		}, err: says("watching the lease"), after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 5, Lease: 3 * time.Second, Leader: "x", Address: "x:1"}, took: 1500 * time.Millisecond, rpcs: "ReadRows:2"},
		{name: "direct, and a server takes over", row: released(v), call: toDirect, before: takes, times: 1, err: leads("x"), after: tso.RowState{Mode: tso.ModeServed, Limit: v, Epoch: 5, Lease: time.Second, Leader: "x", Address: "x:1"}, rpcs: "ReadRows:2 CheckAndMutateRow:1"},
		{name: "direct by another client", row: released(v), call: toDirect, before: raises, times: 1, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 3, Epoch: 5}, rpcs: "ReadRows:2 CheckAndMutateRow:1"},

		{name: "advance", row: direct(v), call: advance(v + 7), changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 7}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "advance to the same", row: direct(v), call: advance(v), after: tso.RowState{Mode: tso.ModeDirect, Limit: v}, rpcs: "ReadRows:1"},
		{name: "advance nothing", call: advance(tso.Min), changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: tso.Min}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "advance to too little", call: advance(tso.Min - 1), err: says("below the smallest"), rpcs: ""},
		{name: "advance to the last", row: direct(v), call: advance(tso.Max), err: is(tso.ErrExhausted), after: tso.RowState{Mode: tso.ModeDirect, Limit: v}, rpcs: ""},
		{name: "advance to the one before", row: direct(v), call: advance(tso.Max - 1), changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: tso.Max - 1}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "advance servers", row: released(v), call: advance(v + 7), changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 7, Epoch: 6, Released: true}, rpcs: "ReadRows:1 CheckAndMutateRow:1"},
		{name: "advance after a leader died", row: led(3*time.Second, v), call: advance(v + 7), changed: true, after: tso.RowState{Mode: tso.ModeServed, Limit: v + 7, Epoch: 6, Released: true}, took: 3 * time.Second, rpcs: "ReadRows:4 CheckAndMutateRow:1"},
		{name: "advance a row that moves", row: direct(v), call: advance(v + 700), before: raises, times: 3, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 700}, rpcs: "ReadRows:4 CheckAndMutateRow:4"},
		{name: "advance a row that moves beyond", row: direct(v), call: advance(v + 6), before: raises, times: 100, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 6}, rpcs: "ReadRows:3 CheckAndMutateRow:2"},
		{name: "advance, and a read fails", row: direct(v), call: advance(v + 7), fails: 1, err: says("injected"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v}, rpcs: "ReadRows:1"},
		{name: "advance, and a write is late", row: direct(v), call: advance(v + 6), before: func(e *tsotest.Emulator, n int) { e.PutInt(int64(v) + int64(n-1)*6) }, times: 2, lost: 1, changed: true, after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 6}, rpcs: "ReadRows:3 CheckAndMutateRow:2"},
		{name: "advance a row that moves all the time", row: direct(v), call: advance(v + 700), before: raises, times: 100, err: says("during each of 10 attempts"), after: tso.RowState{Mode: tso.ModeDirect, Limit: v + 30}, rpcs: "ReadRows:10 CheckAndMutateRow:10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				if tt.row != nil {
					tt.row(e)
				}
				writes, reads, inside := 0, 0, false
				sent := map[string]int{}
				e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
					if inside {
						return call()
					}
					sent[method]++
					if method == tsotest.ReadRows {
						if reads++; reads == tt.fails {
							return nil, status.Error(codes.ResourceExhausted, "injected")
						}
					}
					if method == tsotest.CheckAndMutate {
						if writes++; writes <= tt.times {
							inside = true
							tt.before(e, writes)
							inside = false
						}
						if writes == tt.twice {
							_, _ = call()
						}
						if writes == tt.lost {
							return nil, status.Error(codes.Unavailable, "injected")
						}
					}
					return call()
				})
				began := time.Now()
				changed, err := tt.call(t.Context(), e)
				took := time.Since(began)
				e.On(nil)
				if changed != tt.changed || (err == nil) != (tt.err == nil) || err != nil && !tt.err(err) || took != tt.took {
					t.Errorf("%t, %v after %v; want %t after %v", changed, err, took, tt.changed, tt.took)
				}
				if s := e.State(); !s.Same(tt.after) {
					t.Errorf("the row is %+v\nwant       %+v", s, tt.after)
				}
				if got := requests(sent); got != tt.rpcs || reads < tt.fails || tt.times > 0 && writes == 0 {
					t.Errorf("sent %s, want %s", got, tt.rpcs)
				}
			})
		})
	}
}

// TestDirectLagExactly: the lag is the least one of three changes of the row after the first read, and a row
// that does not change for 300 ms is not busy.
func TestDirectLagExactly(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name  string
		lags  []time.Duration // at each read; then the row does not change
		lag   time.Duration
		busy  bool
		reads int
		took  time.Duration
	}{
		{"idle", []time.Duration{ms}, 0, false, 14, 325 * ms},
		{"busy", []time.Duration{ms, 50 * ms, 30 * ms, 40 * ms, 2 * ms}, 30 * ms, true, 4, 100 * ms},
		{"ahead", []time.Duration{ms, -50 * ms, 30 * ms, 40 * ms}, 0, true, 4, 100 * ms},
		{"two changes", []time.Duration{ms, 50 * ms, 30 * ms}, 0, false, 16, 375 * ms},
	} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			e.PutInt(int64(tsotest.Now()))
			table := e.Table("percolator")
			reads, inside := 0, false
			e.On(func(_ context.Context, _ string, call func() (any, error)) (any, error) {
				if inside {
					return call()
				}
				if reads++; reads <= len(tt.lags) {
					inside = true
					e.PutInt(int64(tso.FromTime(time.Now().Add(-tt.lags[reads-1]))))
					inside = false
				}
				return call()
			})
			began := time.Now()
			lag, busy, err := tso.DirectLag(t.Context(), table, tso.RowConfig{})
			e.On(nil)
			if took := time.Since(began); lag != tt.lag || busy != tt.busy || err != nil || reads != tt.reads || took != tt.took {
				t.Errorf("%s: %v, %t, %v after %d reads and %v", tt.name, lag, busy, err, reads, took)
			}
		})
	}
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		table := e.Table("percolator")
		e.On(func(context.Context, string, func() (any, error)) (any, error) {
			return nil, status.Error(codes.PermissionDenied, "injected")
		})
		if lag, busy, err := tso.DirectLag(t.Context(), table, tso.RowConfig{}); lag != 0 || busy || status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v, %t, %v", lag, busy, err)
		}
		e.On(nil)
	})
}

// TestStatusOfNone: a server that does not answer has no status.
func TestStatusOfNone(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		none := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF })
		if s, err := tso.ServerStatus(t.Context(), tso.ClientConfig{Addresses: []string{"passthrough:none"}, DialOptions: []grpc.DialOption{none}}); status.Code(err) != codes.Unavailable || s != (tso.Status{}) {
			t.Errorf("%+v, %v", s, err)
		}
		if lag := (tso.Status{Clock: 5, Next: 3}).Lag(); lag != 2*time.Microsecond {
			t.Errorf("lag %v", lag)
		}
		e.SetMode(tso.ModeServed)
		began := time.Now()
		if lag, busy, err := tso.DirectLag(t.Context(), e.Table("percolator"), tso.RowConfig{}); lag != 0 || busy || err != nil || time.Since(began) != 0 {
			t.Errorf("in served mode: %v, %t, %v after %v", lag, busy, err, time.Since(began))
		}
	})
}
