package server_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// errLater is an error that passes, and that Bigtable's client does not retry.
var errLater = status.Error(codes.ResourceExhausted, "injected")

// A pause is how long a server waits, at least and less than. An exact one has no second bound.
type pause struct{ least, below time.Duration }

func backoff(failures int) pause {
	step := min(10*time.Millisecond<<(failures-1), 2*time.Second)
	return pause{step / 2, step}
}

func exactly(d time.Duration) pause { return pause{d, d + 1} }

// A recorder fails requests, and records when a server sent the first of those that belong together.
type recorder struct {
	mu    sync.Mutex
	times []time.Time
	fails func(step int, method string) bool // step counts from 0
	at    string                             // the method that begins a step
	then  func()
}

func (r *recorder) hook(_ context.Context, method string, call func() (any, error)) (any, error) {
	r.mu.Lock()
	if now := time.Now(); method == r.at && (len(r.times) == 0 || !r.times[len(r.times)-1].Equal(now)) {
		r.times = append(r.times, now)
	}
	fails := r.fails(len(r.times)-1, method)
	r.mu.Unlock()
	if r.then != nil {
		r.then()
	}
	if fails {
		return nil, errLater
	}
	return call()
}

func (r *recorder) check(t *testing.T, want []pause) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range want {
		if len(r.times) < i+2 {
			t.Errorf("%d steps, want more than %d", len(r.times), len(want))
			return
		}
		if got := r.times[i+1].Sub(r.times[i]); got < w.least || got >= w.below {
			t.Errorf("pause %d is %v, want %v to %v", i, got, w.least, w.below)
		}
	}
}

// readsAfterWrites fails each takeover, and the read that follows it.
func readsAfterWrites() func(int, string) bool {
	wrote := false
	return func(_ int, method string) bool {
		before := wrote
		wrote = method == tsotest.CheckAndMutate
		return wrote || before
	}
}

// standsBy puts a lease of another server into the row.
func standsBy(e *tsotest.Emulator, lease time.Duration, released bool) {
	e.T.Helper()
	e.SetMode(tso.ModeServed)
	r := row.Open(e.Table("percolator"), "", "", 0)
	s, err := r.Read(e.T.Context())
	if err != nil {
		e.T.Fatal(err)
	}
	s.Served.Released, s.Served.LeaseUs = released, lease.Microseconds()
	if ok, err := r.Swap(e.T.Context(), s.Lease, format.Lease{Epoch: s.Lease.Epoch + 1, Nonce: 1}, s.Served); !ok || err != nil {
		e.T.Fatal(ok, err)
	}
}

// TestPaceOfCandidate: how long a candidate waits between two reads of the row, after each kind of step,
// with and without a client that asks all the time. Each success begins the pauses after failures again.
func TestPaceOfCandidate(t *testing.T) {
	long.RacedAtNight(t)
	direct := func(e *tsotest.Emulator) { e.PutInt(int64(tsotest.Now())) }
	minute := func(e *tsotest.Emulator) { standsBy(e, time.Minute, false) }
	second := func(e *tsotest.Emulator) { standsBy(e, time.Second, false) }
	unused := func(e *tsotest.Emulator) { standsBy(e, time.Minute, true) }
	released := func(e *tsotest.Emulator) { e.SetMode(tso.ModeServed) }
	poll, look := exactly(tsotest.Lease/10), exactly(10*time.Millisecond)
	reads := func(steps ...int) func(int, string) bool {
		return func(step int, method string) bool {
			for _, s := range steps {
				if s == step {
					return method == tsotest.ReadRows
				}
			}
			return false
		}
	}
	for _, tt := range []struct {
		name   string
		row    func(e *tsotest.Emulator)
		fails  func(step int, method string) bool
		asked  bool
		pauses []pause
	}{
		{"direct mode", direct, reads(), false, []pause{poll, poll}},
		{"direct mode, asked", direct, reads(), true, []pause{look, look}},
		{"failures, asked", direct, reads(0, 1, 2, 3, 4, 5, 6, 7, 8, 9), true, []pause{backoff(1), backoff(2), backoff(3), backoff(4), backoff(5), backoff(6), backoff(7), backoff(8), backoff(9), backoff(10)}},
		{"failures", direct, reads(0, 1, 2, 3, 4, 5, 6, 7, 8), false, []pause{poll, poll, poll, poll, poll, {poll.least, 320 * time.Millisecond}, backoff(7), backoff(8), backoff(9), poll}},
		{"failures in direct mode, asked", direct, reads(0, 1, 2, 4, 5), true, []pause{backoff(1), backoff(2), backoff(3), look, backoff(1), backoff(2), look}},
		{"another led for a second", second, reads(), false, []pause{poll, poll, poll, exactly(100 * time.Millisecond)}},
		{"failures while another leads, asked", minute, reads(0, 1, 2, 4, 5), true, []pause{backoff(1), backoff(2), backoff(3), look, backoff(1), backoff(2), look}},
		{"takeovers of a released lease fail", unused, func(_ int, method string) bool { return method == tsotest.CheckAndMutate }, false, []pause{backoff(1), backoff(2), backoff(3)}},
		{"takeovers fail", released, func(_ int, method string) bool { return method == tsotest.CheckAndMutate }, false, []pause{backoff(1), backoff(2), backoff(3), backoff(4), backoff(5), backoff(6)}},
		{"takeovers fail, and so do the reads after them", released, readsAfterWrites(), false, []pause{backoff(1), backoff(2), backoff(3), backoff(4)}},
		{"takeovers fail, asked", released, func(_ int, method string) bool { return method == tsotest.CheckAndMutate }, true, []pause{backoff(1), backoff(2), backoff(3), backoff(4), backoff(5), backoff(6)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				tt.row(e)
				var a atomic.Pointer[tsotest.Node]
				started := make(chan struct{})
				r := &recorder{fails: tt.fails, at: tsotest.ReadRows, then: func() {
					if <-started; tt.asked {
						a.Load().Nudge()
					}
				}}
				e.On(r.hook)
				c := tsotest.NewCluster(e)
				a.Store(c.Start("a", server.Config{}))
				close(started)
				tsotest.Advance(15 * time.Second)
				if strings.Contains(tt.name, "takeovers") && !strings.Contains(c.Status("a").Reason, "injected") {
					t.Errorf("it stands by because of %q", c.Status("a").Reason)
				}
				e.On(nil)
				r.check(t, tt.pauses)
			})
		})
	}
}

// TestPaceAfterALostTakeover: another server was first. The candidate looks again soon, and has forgotten
// earlier failures.
func TestPaceAfterALostTakeover(t *testing.T) {
	poll, look := exactly(tsotest.Lease/10), exactly(10*time.Millisecond)
	testPaceAfterALostTakeover(t, true, []pause{backoff(1), backoff(2), look, backoff(1), backoff(2), backoff(3)})
	testPaceAfterALostTakeover(t, false, []pause{poll, poll, look, poll, poll, poll})
}

func testPaceAfterALostTakeover(t *testing.T, asked bool, want []pause) {
	t.Helper()
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		other := row.Open(c.E.Table("percolator"), "", "", 0)
		s, err := other.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		started := make(chan struct{})
		var a *tsotest.Node
		r := &recorder{at: tsotest.ReadRows, fails: func(step int, method string) bool { return method == tsotest.ReadRows && step != 2 }}
		r.then = func() {
			if <-started; asked {
				a.Nudge()
			}
		}
		var once sync.Once
		c.E.On(func(ctx context.Context, method string, call func() (any, error)) (any, error) {
			if method == tsotest.CheckAndMutate {
				once.Do(func() {
					c.E.On(r.hook)
					s.Served.Released, s.Served.LeaseUs = false, time.Minute.Microseconds()
					if ok, err := other.Swap(t.Context(), s.Lease, format.Lease{Epoch: s.Lease.Epoch + 1, Nonce: 1}, s.Served); !ok || err != nil {
						t.Error(ok, err)
					}
				})
			}
			return r.hook(ctx, method, call)
		})
		a = c.Start("a", server.Config{})
		close(started)
		tsotest.Advance(5 * time.Second)
		c.E.On(nil)
		r.check(t, want)
	})
}

// TestPaceOfLeader: a leader renews three times per lease. After failures it repeats sooner, with growing
// pauses up to a quarter of that, however many clients ask. When it is stopped, it repeats the release.
func TestPaceOfLeader(t *testing.T) {
	interval, quarter := exactly(tsotest.Lease/3), exactly(tsotest.Lease/12)
	for _, asked := range []bool{false, true} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			a := c.Start("a", server.Config{})
			synctest.Wait()
			r := &recorder{at: tsotest.CheckAndMutate, fails: func(step int, method string) bool {
				return method == tsotest.CheckAndMutate && (step >= 2 && step < 9 || step >= 10 && step < 12)
			}}
			r.then = func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				if step := len(r.times) - 1; asked && (step >= 2 && step < 9 || step >= 10 && step < 12) {
					a.Nudge()
				}
			}
			c.E.On(r.hook)
			tsotest.Advance(8 * time.Second)
			want := []pause{interval, interval, backoff(1), backoff(2), backoff(3), backoff(4), backoff(5), {backoff(6).least, quarter.below}, quarter, interval, backoff(1), backoff(2), interval}
			if asked { // the last request that failed, or its check, asked again
				want[9], want[12] = pause{0, interval.below}, pause{0, interval.below}
				want = want[:9]
			}
			r.check(t, want)
			if s := c.Status("a"); s.Terms != 1 || !s.Leading {
				t.Errorf("%v", s)
			}
			c.E.On(nil)
			release := &recorder{at: tsotest.CheckAndMutate, fails: func(step int, method string) bool { return method == tsotest.CheckAndMutate && step < 5 }}
			c.E.On(release.hook)
			a.Stop()
			<-a.Ended
			c.E.On(nil)
			release.check(t, []pause{backoff(1), backoff(2), backoff(3), backoff(4), backoff(5)})
			if s := c.E.State(); !s.Released {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestWrongClockOfServer: a server compares its clock with Bigtable's only if the clock is ahead of the
// row by more than MaxStep. It follows the earlier one, and warns once of a difference above MaxStep.
func TestWrongClockOfServer(t *testing.T) {
	long.RacedAtNight(t)
	const most = time.Minute
	for _, tt := range []struct {
		age, off time.Duration // how far the clock is ahead of the row, and of Bigtable's
		stamps   int
		warns    int
	}{
		{most, 0, 0, 0},
		{most + time.Microsecond, 0, 1, 0},
		{most, -most, 0, 0},
		{3 * most, -most, 1, 0},
		{3 * most, -most - time.Millisecond, 1, 1},
		{3 * most, most, 4, 0},
		{3 * most, most + time.Microsecond, 4, 1},
		{3 * most, time.Hour, 4, 1},
	} {
		t.Run(fmt.Sprint(tt.age, tt.off), func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				row := tsotest.Now()
				e.PutInt(int64(row))
				e.SetMode(tso.ModeServed)
				tsotest.Advance(tt.age - tt.off)
				var log bytes.Buffer
				var stamps atomic.Int32
				e.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
					if method == tsotest.MutateRow {
						stamps.Add(1)
					}
					return call()
				})
				c := tsotest.NewCluster(e)
				began := tsotest.Now()
				c.Start("a", server.Config{
					Clock: func() time.Time { return time.Now().Add(tt.off) }, MaxStep: most, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				synctest.Wait()
				want := began.Add(min(tt.off, 0))
				server := tso.Timestamp(time.UnixMicro(int64(began)).UnixMilli() * 1000) // Bigtable's clock has milliseconds
				if tt.stamps > 0 {
					want = min(began.Add(tt.off), server)
				}
				if s := e.State(); s.Limit != want.Add(tsotest.Lease) {
					t.Errorf("the limit is %d from the time to follow", s.Limit-want)
				}
				if tt.stamps > 0 {
					want = max(want, row+1)
					if ts, err := c.Client(tso.ClientConfig{}, "a").Timestamp(t.Context()); ts != want || err != nil {
						t.Errorf("%d, %v; want %d", ts, err, want)
					}
				}
				tsotest.Advance(tsotest.Lease + time.Millisecond) // three renewals
				e.On(nil)
				if n := strings.Count(log.String(), "clock of this machine differs"); int(stamps.Load()) != tt.stamps || n != tt.warns {
					t.Errorf("%d stamps, %d warnings; want %d, %d:\n%s", stamps.Load(), n, tt.stamps, tt.warns, &log)
				}
			})
		})
	}
}
