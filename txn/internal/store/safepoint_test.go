package store

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// TestSafePointBounds: readers need S ≥ P and writers S > P. A client that relies on missing
// records needs S > P too.
func TestSafePointBounds(t *testing.T) {
	s := &SafePoint{store: &Store{}}
	s.View.Store(newSafePointView(100, time.Now()))
	for _, tt := range []struct {
		ts          tso.Timestamp
		read, write bool
	}{{99, false, false}, {100, true, false}, {101, true, true}} {
		if err := s.CheckRead(t.Context(), tt.ts); (err == nil) != tt.read || err != nil && !errors.Is(err, format.ErrTooOld) {
			t.Errorf("read at %d: %v", tt.ts, err)
		}
		if err := s.CheckWrite(t.Context(), tt.ts); (err == nil) != tt.write || err != nil && !errors.Is(err, format.ErrTooOld) {
			t.Errorf("write at %d: %v", tt.ts, err)
		}
		if gone, err := s.Forgotten(t.Context(), tt.ts); err != nil || gone == tt.write {
			t.Errorf("forgotten at %d: %v, %v", tt.ts, gone, err)
		}
		keep, tooOld, err := s.splitTooOld(t.Context(), []RowMutation{{StartTS: tt.ts}, {}})
		if n := len(keep) - 1; err != nil || (n == 1) != tt.write || len(tooOld) != 1-n {
			t.Errorf("splitTooOld at %d: %d, %d, %v", tt.ts, len(keep), len(tooOld), err)
		}
	}
	if !s.used.Load() {
		t.Error("KeepFresh would take the client for idle")
	}
}

// TestAfterRead: a read below the safe point that found records which contradict each other
// was too late. Above the safe point, and with any other error, its own error stays.
func TestAfterRead(t *testing.T) {
	s := &SafePoint{store: &Store{}}
	s.View.Store(newSafePointView(100, time.Now()))
	other := errors.New("other")
	for _, tt := range []struct {
		ts        tso.Timestamp
		err, want error
	}{
		{99, nil, format.ErrTooOld}, {100, nil, nil},
		{99, format.ErrCorrupt, format.ErrTooOld}, {100, format.ErrCorrupt, format.ErrCorrupt},
		{99, other, other}, {100, other, other},
	} {
		if err := s.AfterRead(t.Context(), tt.ts, tt.err); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("a read at %d that ended with %v: %v, want %v", tt.ts, tt.err, err, tt.want)
		}
	}
}

// TestSafePointViewGoesStale: a view goes stale after its time. A wall clock that jumps ahead
// ends it as well: the machine may have slept while its monotonic clock stood still.
func TestSafePointViewGoesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := time.Now()
		<-time.After(gctime.SafePointMaxAge())
		if v := newSafePointView(1, asked); !v.fresh() {
			t.Error("stale in time")
		}
		<-time.After(time.Millisecond)
		if v := newSafePointView(1, asked); v.fresh() {
			t.Error("fresh after its time")
		}
	})
	slept := newSafePointView(1, time.Now())
	slept.wall = slept.wall.Add(-time.Hour)
	if slept.fresh() {
		t.Error("fresh after an hour of sleep")
	}
}

// TestSafePointOnlyRises: a client never forgets a safe point that it has read, and an older
// answer never makes a view look newer.
func TestSafePointOnlyRises(t *testing.T) {
	s := &SafePoint{}
	now := time.Now()
	s.View.Store(&SafePointView{})
	for _, step := range []struct {
		ts    tso.Timestamp
		asked time.Time
		want  *SafePointView
	}{
		{100, now, newSafePointView(100, now)},
		{90, now.Add(time.Second), newSafePointView(100, now.Add(time.Second))},
		{110, now.Add(-time.Second), newSafePointView(110, now.Add(time.Second))},
	} {
		s.note(&recordpb.SafePoint{Ts: int64(step.ts)}, step.asked)
		if got := *s.View.Load(); got != *step.want {
			t.Errorf("after %d: %v, want %v", step.ts, got, *step.want)
		}
	}
}

// TestSafePointDrains: a safe point is drained one retention after it was stored as
// resolved. Runs in between do not delay that, and a run for the drained safe point itself,
// because a hold kept the next one back, does not end it. To store a run again changes nothing.
func TestSafePointDrains(t *testing.T) {
	const retention = 100 * time.Microsecond
	r := &recordpb.SafePoint{}
	for _, run := range []struct{ ts, now, want tso.Timestamp }{
		{900, 1000, 0}, {950, 1050, 0}, {999, 1099, 0}, {1000, 1100, 900}, {1099, 1199, 900}, {1100, 1200, 1000}, {1300, 1400, 1100},
		{1300, 1500, 1300}, {1300, 1600, 1300}, {1700, 1800, 1300}, {1800, 1900, 1700},
	} {
		before := Drained(r, run.now, retention)
		if noteResolved(r, run.ts, run.now, retention); tso.Timestamp(r.DrainedTs) != run.want || before != run.want || r.ResolvedTs != int64(run.ts) {
			t.Errorf("the run at %d: drained up to %d, and %d before it, want %d; %v", run.now, r.DrainedTs, before, run.want, r)
		}
		if noteResolved(r, run.ts, run.now, retention) {
			t.Errorf("the run at %d, stored again, changed %v", run.now, r)
		}
	}
}

// TestResolvedBounds: to store a run changes what it raises, and nothing else. What drains never falls below
// what is drained.
func TestResolvedBounds(t *testing.T) {
	for _, tt := range []struct {
		resolved, drained, draining, ts, now int64
		changed                              bool
		want                                 string
	}{
		{3, 10, 10, 5, 200, true, "5 10 10 1"},     // below what is drained
		{10, 10, 10, 10, 200, false, "10 10 10 1"}, // what is drained
		{10, 10, 10, 11, 200, true, "11 10 11 200"},
		{10, 10, 5, 10, 200, false, "10 10 5 1"},
		{20, 10, 20, 30, 100, true, "30 10 20 1"}, // another one drains
		{20, 10, 20, 30, 101, true, "30 20 30 101"},
	} {
		r := &recordpb.SafePoint{ResolvedTs: tt.resolved, DrainedTs: tt.drained, DrainingTs: tt.draining, DrainingSinceTs: 1}
		changed := noteResolved(r, tso.Timestamp(tt.ts), tso.Timestamp(tt.now), 100*time.Microsecond)
		if got := fmt.Sprint(r.ResolvedTs, r.DrainedTs, r.DrainingTs, r.DrainingSinceTs); got != tt.want || changed != tt.changed {
			t.Errorf("%+v: %s, changed: %t", tt, got, changed)
		}
	}
}

// TestFence: the fence is longer than what a collector waits for.
func TestFence(t *testing.T) {
	if gctime.Fence() <= gctime.SafePointMaxAge()+gctime.MaxApply() {
		t.Errorf("fence %v, safe point %v, apply %v", gctime.Fence(), gctime.SafePointMaxAge(), gctime.MaxApply())
	}
	if gctime.MinRetention() < 2*gctime.Fence() {
		t.Errorf("retention %v, fence %v", gctime.MinRetention(), gctime.Fence())
	}
}
