package server_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestStatusOfALeader: an idle leader has reserved one lease or two of the largest requests,
// and its status says how long its lease lasts.
func TestStatusOfALeader(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		began := time.Now()
		for range 10 {
			tsotest.Advance(tsotest.Lease / 7)
			s := c.Status("a")
			if up := time.Duration(s.UptimeUs) * time.Microsecond; up > time.Since(began) || up < time.Since(began)-time.Millisecond {
				t.Errorf("up for %v instead of %v", up, time.Since(began))
			}
			room := max(tso.Timestamp(tsotest.Lease.Microseconds()), 2*tso.MaxCount)
			if left := time.Duration(s.LeaseLeftUs) * time.Microsecond; !s.Leading || left <= tsotest.Lease/2 || left > tsotest.Lease {
				t.Errorf("leading: %t, with %v left of a lease of %v", s.Leading, left, tsotest.Lease)
			}
			if now := int64(tsotest.Now()); s.Next != now || s.Limit <= now || s.Limit > now+int64(room) {
				t.Errorf("next %d, limit %d at %d", s.Next, s.Limit, now)
			}
		}
	})
}

func TestServed(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		if got := h.Ask(t.Context(), client); got != tsotest.Now() {
			t.Errorf("first timestamp %d at %d", got, tsotest.Now())
		}
		c.E.Counted()
		for range 1000 {
			h.Ask(t.Context(), client)
		}
		c.E.Expect("")                                    // from memory
		tsotest.Advance(10*time.Second + tsotest.Lease/6) // between two renewals
		if got := h.Ask(t.Context(), client); got != tsotest.Now() {
			t.Errorf("%d at %d", got, tsotest.Now())
		}
		c.E.Expect("CheckAndMutateRow:10") // renewals only
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 100 {
					h.Ask(t.Context(), client)
				}
			})
		}
		wg.Wait()
		h.Check(1002 + 5000)
		s := c.E.State()
		if s.Mode != tso.ModeServed || s.Leader != "a" || s.Released || s.Limit < h.Highest() || s.Limit > tsotest.Now().Add(tsotest.Lease) {
			t.Errorf("row %+v, highest %d at %d", s, h.Highest(), tsotest.Now())
		}
		st := client.Stats()
		if st.Timestamps != 6002 || st.Failures != 0 || st.Requests > 2000+1002 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestTakeoverAfterOneLease: the leader is cut off from Bigtable and then dies.
func TestTakeoverAfterOneLease(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a", "b")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		tsotest.Advance(tsotest.Lease + tsotest.Lease/6)
		if l := c.Leader(); l != "a" {
			t.Fatalf("leader %q", l)
		}
		if !c.Healthy("a", "") || c.Healthy("b", "") || !c.Healthy("b", server.LiveService) {
			t.Error("health check does not follow leadership")
		}
		a.CutOff()
		start := time.Now()
		for c.Leader() == "a" {
			h.Ask(t.Context(), client)
			tsotest.Advance(7 * time.Millisecond) // never at the very moment of a renewal
		}
		if d := time.Since(start); d > tsotest.Lease-tsotest.Lease/10 || d < tsotest.Lease/2 {
			t.Errorf("the leader stopped after %s", d)
		}
		if c.Healthy("a", "") {
			t.Error("a deposed leader calls itself healthy")
		}
		h.Ask(t.Context(), client) // waits for b
		if d := time.Since(start); d > tsotest.Lease+tsotest.Lease/2 {
			t.Errorf("takeover took %s", d)
		}
		if l := c.Leader(); l != "b" {
			t.Errorf("leader %q", l)
		}
		a.Cut.Store(false)
		tsotest.Advance(2 * tsotest.Lease)
		if l := c.Leader(); l != "b" {
			t.Errorf("leader %q after a is back", l)
		}
		h.Ask(t.Context(), client)
		if h.Highest() > tsotest.Now() {
			t.Errorf("oracle time jumped to %d at %d", h.Highest(), tsotest.Now())
		}
		if s := c.E.State(); s.Epoch != 3 { // the switch, a, b
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}

// TestSuspendedLeaderGoesOn: no other server wants the lease, so the term
// continues once the row is back.
func TestSuspendedLeaderGoesOn(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		h.Ask(t.Context(), client)
		epoch := c.E.State().Epoch
		a.CutOff()
		tsotest.Advance(5 * tsotest.Lease)
		if c.Leader() != "" {
			t.Error("leads without a lease")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.Timestamp(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not the leader") {
			t.Errorf("without a leader: %v", err)
		}
		a.Cut.Store(false)
		tsotest.Advance(tsotest.Lease)
		h.Ask(t.Context(), client)
		if e := c.E.State().Epoch; e != epoch {
			t.Errorf("epoch %d, was %d", e, epoch)
		}
	})
}

// TestGracefulHandover takes no lease: a candidate that gets a request reads the row at once.
func TestGracefulHandover(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		client := c.Client(tso.ClientConfig{}, "a", "b")
		h := tsotest.NewHistory(t)
		high := h.Ask(t.Context(), client)
		start := time.Now()
		a.Stop()
		if err := <-a.Ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		ended := time.Since(start)
		h.Ask(t.Context(), client)
		if d := time.Since(start) - ended; d > 100*time.Millisecond {
			t.Errorf("handover took %s more", d)
		}
		if ended > 500*time.Millisecond {
			t.Errorf("stopping took %s", ended)
		}
		if h.Highest() > tsotest.Now() || h.Highest() <= high {
			t.Errorf("%d after %d at %d", h.Highest(), high, tsotest.Now())
		}
	})
}

// TestNothingAfterRelease: the lease that is given up names the last timestamp
// handed out, so there must be none while that is on its way. The server is not healthy any more.
func TestNothingAfterRelease(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{GraceTimeout: time.Minute})
		tsotest.Advance(tsotest.Lease / 6) // between two renewals
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := tsopb.NewOracleClient(c.Raw("a")).Timestamps(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ask := func() *tsopb.TimestampsResponse {
			t.Helper()
			_ = stream.Send(&tsopb.TimestampsRequest{FormatVersion: tso.FormatVersion, Count: 1})
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := ask(); r.NotLeader != nil {
			t.Fatal(r)
		}
		watch, err := healthpb.NewHealthClient(c.Raw("a")).Watch(ctx, &healthpb.HealthCheckRequest{Service: server.LiveService})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Error(r, err)
		}
		g := tsotest.NewGate(tsotest.CheckAndMutate, false)
		c.E.On(g.Hook)
		a.Stop()
		<-g.Held
		if r := ask(); r.NotLeader == nil || r.First != 0 || r.Count != 0 {
			t.Errorf("handed out %d while the lease is being released", r.First)
		}
		if r, err := watch.Recv(); err != nil || r.Status != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Error(r, err)
		}
		c.E.On(nil)
		close(g.Open)
		cancel()
		if err := <-a.Ended; err != nil {
			t.Error(err)
		}
		if s := c.E.State(); !s.Released {
			t.Errorf("%+v", s)
		}
	})
}

// TestPausedLeader stops a leader between generating a range and answering, for
// longer than its lease. With the check after generating it does not answer;
// without, it would answer below what the next leader has handed out: the
// second half proves that the test would notice.
func TestPausedLeader(t *testing.T) {
	for _, unchecked := range []bool{false, true} {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			a := c.Start("a", server.Config{})
			synctest.Wait()
			c.Start("b", server.Config{})
			tsotest.Advance(tsotest.Lease / 2)
			var paused atomic.Int32
			resume := make(chan struct{})
			a.Between(func() {
				if paused.Add(1) == 1 {
					a.Cut.Store(true) // a stopped process writes nothing either
					<-resume
				}
			}, unchecked)
			type answer struct {
				res *tsopb.TimestampsResponse
				err error
			}
			answered := make(chan answer, 1)
			go func() {
				res, err := c.One("a", tso.FormatVersion, 1)
				answered <- answer{res, err}
			}()
			fresh := c.Client(tso.ClientConfig{}, "b")
			newer, err := fresh.Timestamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			close(resume)
			got := <-answered
			if got.err != nil || paused.Load() != 1 {
				t.Fatalf("%v, paused %d times", got.err, paused.Load())
			}
			stale := got.res.NotLeader == nil && tso.Timestamp(got.res.First) <= newer
			if stale != unchecked {
				t.Errorf("check left out %t: answered %v when %d was out", unchecked, got.res, newer)
			}
		})
	}
}

// TestLeaseRunsFromSending: a renewal whose answer took long makes the lease
// shorter, not longer.
func TestLeaseRunsFromSending(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{RPCTimeout: time.Minute})
		synctest.Wait()
		g := tsotest.NewGate(tsotest.CheckAndMutate, true)
		c.E.On(g.Hook)
		<-g.Held // a renewal took effect, its answer is on the way
		sent := time.Now()
		tsotest.Advance(tsotest.Lease - tsotest.Lease/10 - time.Millisecond)
		// The one before was an interval earlier, so it has expired by now.
		if c.Leader() != "" {
			t.Error("leads on a renewal that was not acknowledged")
		}
		next := tsotest.NewGate(tsotest.CheckAndMutate, false)
		c.E.On(next.Hook)
		close(g.Open)
		<-next.Held // the renewal after it does not get through
		if st := c.Status("a"); !st.Leading || st.LeaseLeftUs > time.Until(sent.Add(tsotest.Lease-tsotest.Lease/10)).Microseconds() {
			t.Errorf("leading %t, lease left %d µs", st.Leading, st.LeaseLeftUs)
		}
		tsotest.Advance(time.Millisecond)
		if c.Leader() != "" {
			t.Error("leads longer than the lease from when it was sent")
		}
		c.E.On(nil)
		close(next.Open)
	})
}

// TestLateRenewalDoesNotPutTheLimitBack delays a write of the leader past the
// next one.
func TestLateRenewalDoesNotPutTheLimitBack(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("a", server.Config{})
		synctest.Wait()
		client := c.Client(tso.ClientConfig{}, "a")
		h := tsotest.NewHistory(t)
		var late func() (any, error)
		c.E.On(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == tsotest.CheckAndMutate && late == nil {
				late = call
				return nil, status.Error(codes.DeadlineExceeded, "delayed")
			}
			return call()
		})
		tsotest.Advance(3 * tsotest.Lease)
		if late == nil {
			t.Fatal("the fault did not fire")
		}
		h.Ask(t.Context(), client)
		before := c.E.State()
		_, _ = late()
		if after := c.E.State(); after != before {
			t.Errorf("a late write changed the row: %+v, before %+v", after, before)
		}
		if before.Limit < h.Highest() {
			t.Errorf("limit %d below %d", before.Limit, h.Highest())
		}
	})
}

// TestFaultAtEveryWrite runs an election, renewals and a handover with one
// fault at the k-th request to Bigtable, for all k.
func TestFaultAtEveryWrite(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, fault := range tsotest.Faults {
		t.Run(fault.Name, func(t *testing.T) {
			methods := map[string]int{}
			k := 0
			for fired := true; fired; k++ {
				fired = false
				tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
					var mu sync.Mutex
					n := 0
					c.E.On(func(_ context.Context, method string, call func() (any, error)) (any, error) {
						mu.Lock() // two servers at once
						now := n == k
						n++
						fired = fired || now
						now = now && (method != tsotest.ReadRows || fault.Name[:3] != "dup")
						if now {
							methods[method]++
						}
						mu.Unlock()
						if !now {
							return call()
						}
						return fault.Do(call)
					})
					h := tsotest.NewHistory(t)
					a := c.Start("a", server.Config{})
					tsotest.Advance(10 * time.Millisecond)
					c.Start("b", server.Config{})
					client := c.Client(tso.ClientConfig{}, "a", "b")
					h.Ask(t.Context(), client)
					tsotest.Advance(tsotest.Lease)
					h.Ask(t.Context(), client)
					a.Stop()
					h.Ask(t.Context(), client)
					tsotest.Advance(tsotest.Lease)
					h.Ask(t.Context(), client)
					c.E.On(nil)
					h.Check(4)
					if h.Highest() > tsotest.Now().Add(tsotest.Lease) {
						t.Errorf("overshot: %d at %d", h.Highest(), tsotest.Now())
					}
					if s := c.E.State(); s.Limit < h.Highest() {
						t.Errorf("limit %d below %d", s.Limit, h.Highest())
					}
				})
				if t.Failed() {
					t.Fatalf("with the fault at request %d", k)
				}
				if k > 60 {
					break // renewals continue without end
				}
			}
			if methods[tsotest.CheckAndMutate] < 5 {
				t.Errorf("fired at %v", methods)
			}
		})
	}
}
