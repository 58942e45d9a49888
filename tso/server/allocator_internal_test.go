package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const testLease = 3 * time.Second

func testAllocator() *allocator {
	return &allocator{
		cfg: &Config{Name: "a", Address: "here", Lease: testLease, Clock: time.Now}, log: slog.New(slog.DiscardHandler),
		onChange: func(bool) {}, wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// lead makes the allocator the leader of everything up to limit.
func (a *allocator) lead(limit tso.Timestamp) {
	now := time.Now()
	a.extend(held{state: &tsopb.ServedState{Limit: int64(limit)}, sent: now, wall: now.Round(0)}, tso.FromTime(now))
}

func (a *allocator) nudged() bool {
	select {
	case <-a.wake:
		return true
	default:
		return false
	}
}

// TestRangeInMemory: timestamps come from the range that is reserved, to its very end, and never
// twice. A low range, and one that is used up, ask for more.
func TestRangeInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		if _, _, err := a.generate(1); !errors.Is(err, tso.ErrNotLeader) || !a.nudged() || a.high() != 0 {
			t.Errorf("without a term: %v, highest %d", err, a.high())
		}
		now := tso.FromTime(time.Now())
		a.begin(7, now+10)
		if a.newState(0, now); a.reserve != tso.Timestamp(testLease.Microseconds()) {
			t.Errorf("it reserves %d", a.reserve)
		}
		a.lead(now + 10 + 1000)
		generate := func(count, want tso.Timestamp, low bool) {
			t.Helper()
			first, wait, err := a.generate(count)
			if first != want || (wait != nil) != (want == 0) || err != nil || a.nudged() != low {
				t.Errorf("%d: from %d, wait %t, %v; want from %d", count, first-now, wait != nil, err, want-now)
			}
		}
		a.reserve = 1000
		generate(1, now+11, false)
		generate(498, now+12, false)
		if ahead, leading := a.ahead(); ahead != 510 || !leading || a.high() != now+509 || a.handedOut() != 499 {
			t.Errorf("%d ahead, leading %t, highest %d, %d handed out", ahead, leading, a.high()-now, a.handedOut())
		}
		generate(1, now+510, true) // less than half is left
		generate(1, now+511, true)
		generate(500, 0, true) // one too many
		generate(499, now+512, true)
		generate(1, 0, true)
		if s := a.status(); s.Timestamps != 1000 || s.Timestamps != a.handedOut() || s.Requests != 5 || s.Terms != 1 || s.Epoch != 7 || !s.Leading || s.Next != int64(now+1011) || s.Limit != int64(now+1010) || s.Reason != "" {
			t.Errorf("%v", s)
		}
		// The clock moves them on, but not beyond what the last write confirmed.
		a.lead(now + 1e9)
		a.nudged()
		<-time.After(time.Second)
		generate(1, now+1e6, false)
		a.follow(300_000) // the clock is ahead by so much
		<-time.After(100 * time.Millisecond)
		if ahead, leading := a.ahead(); ahead != 1+300_000-100_000 || !leading || a.status().Next != int64(now+1e6+1) {
			t.Errorf("%d ahead, %v", ahead, a.status())
		}
		<-time.After(250 * time.Millisecond)
		if s := a.status(); s.Next != int64(now+1e6+50_000) {
			t.Errorf("the next one is %d", s.Next-int64(now))
		}
		generate(1, now+1e6+50_000, false)
		a.follow(0)
		<-time.After(testLease/2 - 350*time.Millisecond)
		generate(1, now.Add(testLease*2/renewals), false)
	})
}

// TestLastRange: the largest timestamp is handed out, and none after it.
func TestLastRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		a.begin(1, tso.Max-3)
		a.lead(tso.Max)
		for _, tt := range []struct{ count, want tso.Timestamp }{{4, 0}, {2, tso.Max - 2}, {2, 0}, {1, tso.Max}, {1, 0}} {
			first, wait, err := a.generate(tt.count)
			if first != tt.want || wait != nil || errors.Is(err, tso.ErrExhausted) != (tt.want == 0) {
				t.Errorf("%d: from %d, %v; want from %d", tt.count, first, err, tt.want)
			}
		}
	})
}

// TestValidity: a leader answers until a tenth of its lease is left, by both clocks, and begins
// again when it has renewed the lease. A caller that waits for a range notices both.
func TestValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		now := tso.FromTime(time.Now())
		a.begin(1, now)
		a.lead(now + 1e9)
		<-time.After(testLease*9/10 - 1)
		if _, _, err := a.generate(1); err != nil || !a.isLeading() || a.nudged() {
			t.Errorf("before the end: %v", err)
		}
		<-time.After(1)
		synctest.Wait()
		if _, _, err := a.generate(1); !errors.Is(err, tso.ErrNotLeader) || !a.nudged() {
			t.Errorf("at the end: %v", err)
		}
		if a.isLeading() || !a.nudged() {
			t.Error("it leads at the end")
		}
		if ahead, leading := a.ahead(); ahead != 0 || leading {
			t.Errorf("%d ahead, leading %t", ahead, leading)
		}
		a.lead(now + 1e9)
		if _, _, err := a.generate(1); err != nil {
			t.Errorf("renewed: %v", err)
		}
		// The machine slept: its wall clock has moved, its other clock has not.
		a.cfg.Clock = func() time.Time { return time.Now().Add(testLease) }
		if _, _, err := a.generate(1); !errors.Is(err, tso.ErrNotLeader) || !a.nudged() {
			t.Errorf("after a sleep: %v", err)
		}
		a.cfg.Clock = func() time.Time { return time.Now().Add(-time.Hour) }
		if _, _, err := a.generate(1); err != nil {
			t.Errorf("a clock that was set back: %v", err)
		}
		a.cfg.Clock = time.Now
		a.lead(a.high()) // nothing is left
		began := time.Now()
		if _, err := a.allocate(t.Context(), 1); !errors.Is(err, tso.ErrNotLeader) || time.Since(began) != testLease*9/10 {
			t.Errorf("without room: %v after %v", err, time.Since(began))
		}
		a.lead(a.high())
		go func() { <-time.After(time.Millisecond); a.lead(a.high() + 100) }()
		if first, err := a.allocate(t.Context(), 1); err != nil || first != a.high() {
			t.Errorf("with room again: %d, %v", first, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		a.lead(a.high())
		if _, err := a.allocate(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after the caller's deadline: %v", err)
		}
		a.lose(nil)
	})
}

// TestLateValidity: an answer that comes when the lease has ended makes no leader, and a process that was
// stopped does not answer, whatever its wall clock shows and although nothing has told it yet.
func TestLateValidity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		changes := 0
		a.onChange = func(bool) { changes++ }
		var log bytes.Buffer
		a.log = slog.New(slog.NewTextHandler(&log, nil))
		a.measure(time.Second, 0)
		a.rate = 7
		a.begin(1, tso.FromTime(time.Now()))
		if s := a.status(); s.Rate != 0 || s.Terms != 1 {
			t.Errorf("at the beginning of a term: %v", s)
		}
		limit := int64(tso.FromTime(time.Now()) + 1e12)
		for late, leads := range map[time.Duration]bool{1: false, 0: false, -1: true} {
			now := time.Now()
			a.extend(held{state: &tsopb.ServedState{Limit: limit}, sent: now.Add(-testLease*9/10 - late), wall: now.Round(0)}, tso.FromTime(now))
			if a.leading != leads {
				t.Errorf("%v late: it leads: %t", late, a.leading)
			}
			a.lose(nil)
			synctest.Wait()
		}
		if <-time.After(testLease); changes != 2 || log.Len() > 0 {
			t.Errorf("%d changes; log: %s", changes, &log)
		}
		a.lead(tso.Timestamp(limit))
		a.until = time.Now() // its timer has not run
		a.cfg.Clock = func() time.Time { return time.Now().Add(-time.Hour) }
		if _, _, err := a.generate(1); !errors.Is(err, tso.ErrNotLeader) {
			t.Errorf("after a stop: %v", err)
		}
		a.cfg.Clock = time.Now
		a.lead(a.high()) // nothing is left, and renewals change nothing
		a.until = time.Now().Add(time.Hour)
		began := time.Now()
		if _, err := a.allocate(t.Context(), 1); !errors.Is(err, tso.ErrNotLeader) || time.Since(began) != renewals*a.cfg.interval() {
			t.Errorf("without room: %v after %v", err, time.Since(began))
		}
	})
}

// TestRoomToReserve: a write reserves one lease, or what two intervals use, and never goes back.
func TestRoomToReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		lease := tso.Timestamp(testLease.Microseconds())
		const now = tso.Timestamp(1_800_000_000_000_000)
		state := func(high, limit tso.Timestamp) {
			t.Helper()
			s := a.newState(high, now)
			if tso.Timestamp(s.Limit) != limit || s.Leader != "a" || s.Address != "here" || s.LeaseUs != a.cfg.Lease.Microseconds() || tso.Timestamp(s.WrittenTs) != max(high, now) {
				t.Errorf("above %d: %v; want a limit of %d", high, s, limit-now)
			}
		}
		state(0, now+lease)
		state(now+5, now+5+lease)
		a.used = 30e6
		a.measure(time.Second, 0)
		state(0, now+tso.Timestamp(60e6*a.cfg.interval().Seconds()))
		a.measure(time.Second, 30e6-10)
		state(0, now+lease)
		a.measure(0, 0) // which counts as a quarter of an interval
		if want := 30e6 / (a.cfg.interval() / 4).Seconds(); a.rate != want || a.status().Rate != want {
			t.Errorf("a rate of %v, want %v", a.rate, want)
		}
		a.used = 1e12
		a.measure(time.Second, 0)
		state(0, now+maxReserve)
		a.limit = now + 2*maxReserve
		state(0, now+2*maxReserve)
		a.limit = 0
		state(tso.Max-1, tso.Max)
		a.cfg.Lease = time.Millisecond
		a.measure(time.Second, a.used)
		state(0, now+2*tso.MaxCount)
	})
}

// TestRefusals: a server that does not lead says who does, and why none does.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testAllocator()
		refusal := func(leader, reason, status string, trouble tsopb.Trouble) {
			t.Helper()
			r, s := a.refusal(tso.ErrNotLeader), a.status()
			if r.LeaderAddress != leader || r.Reason != reason || r.Trouble != trouble || s.Reason != status || s.LeaderAddress != leader || s.Leading || s.Next != 0 || s.LeaseLeftUs != 0 {
				t.Errorf("%v, %v; want %q, %q, %q", r, s, leader, reason, status)
			}
		}
		none := tso.ErrNotLeader.Error()
		refusal("", none, "no leader is known", tsopb.Trouble_TROUBLE_NONE)
		a.stand(t.Context(), nil, "there")
		refusal("there", none, "standing by", tsopb.Trouble_TROUBLE_NONE)
		a.stand(t.Context(), tso.ErrExhausted, "")
		refusal("", tso.ErrExhausted.Error(), tso.ErrExhausted.Error(), tsopb.Trouble_TROUBLE_EXHAUSTED)
		if r := a.refusal(context.Canceled); r.Reason != context.Canceled.Error() {
			t.Errorf("another reason: %v", r)
		}
		a.begin(1, tso.FromTime(time.Now()))
		a.lead(tso.FromTime(time.Now()) + 1e9)
		if r, s := a.refusal(tso.ErrNotLeader), a.status(); r.LeaderAddress != "" || r.Trouble != tsopb.Trouble_TROUBLE_NONE || !s.Leading || s.LeaderAddress != "here" || s.LeaseLeftUs != (testLease*9/10).Microseconds() {
			t.Errorf("a leader: %v, %v", r, s)
		}
		a.lose(nil)
		refusal("", none, "no leader is known", tsopb.Trouble_TROUBLE_NONE)
		a.lead(tso.FromTime(time.Now()) + 1e9)
		a.lose(tso.ErrMode)
		refusal("", tso.ErrMode.Error(), tso.ErrMode.Error(), tsopb.Trouble_TROUBLE_MODE)
		a.stand(t.Context(), nil, "there")
		a.lose(nil)
		refusal("there", none, "standing by", tsopb.Trouble_TROUBLE_NONE)
	})
}
