package tso_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

func TestServed(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		if got := h.ask(t.Context(), client); got != now() {
			t.Errorf("first timestamp %d at %d", got, now())
		}
		c.e.counted()
		for range 1000 {
			h.ask(t.Context(), client)
		}
		c.e.expect("")                    // from memory
		advance(10*time.Second + lease/6) // between two renewals
		if got := h.ask(t.Context(), client); got != now() {
			t.Errorf("%d at %d", got, now())
		}
		c.e.expect("CheckAndMutateRow:10") // renewals only
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 100 {
					h.ask(t.Context(), client)
				}
			})
		}
		wg.Wait()
		h.check(1002 + 5000)
		s := c.e.state()
		if s.Mode != tso.ModeServed || s.Leader != "a" || s.Released || s.Limit < h.highest() || s.Limit > now()+tso.Timestamp(lease.Microseconds()) {
			t.Errorf("row %+v, highest %d at %d", s, h.highest(), now())
		}
		st := client.Stats()
		if st.Timestamps != 6002 || st.Failures != 0 || st.Requests > 2000+1002 {
			t.Errorf("stats %+v", st)
		}
	})
}

// TestTakeoverAfterOneLease: the leader is cut off from Bigtable and then dies.
func TestTakeoverAfterOneLease(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a", "b")
		h := newHistory(t)
		h.ask(t.Context(), client)
		advance(lease + lease/6)
		if l := c.leader(); l != "a" {
			t.Fatalf("leader %q", l)
		}
		if !c.healthy("a", "") || c.healthy("b", "") || !c.healthy("b", tso.LiveService) {
			t.Error("health check does not follow leadership")
		}
		a.cut.Store(true)
		start := time.Now()
		for c.leader() == "a" {
			h.ask(t.Context(), client)
			advance(7 * time.Millisecond) // never at the very moment of a renewal
		}
		if d := time.Since(start); d > lease-lease/10 || d < lease/2 {
			t.Errorf("the leader stopped after %s", d)
		}
		if c.healthy("a", "") {
			t.Error("a deposed leader calls itself healthy")
		}
		h.ask(t.Context(), client) // waits for b
		if d := time.Since(start); d > lease+lease/2 {
			t.Errorf("takeover took %s", d)
		}
		if l := c.leader(); l != "b" {
			t.Errorf("leader %q", l)
		}
		a.cut.Store(false)
		advance(2 * lease)
		if l := c.leader(); l != "b" {
			t.Errorf("leader %q after a is back", l)
		}
		h.ask(t.Context(), client)
		if h.highest() > now() {
			t.Errorf("oracle time jumped to %d at %d", h.highest(), now())
		}
		if s := c.e.state(); s.Epoch != 3 { // the switch, a, b
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}

// TestSuspendedLeaderGoesOn: nobody else wants the lease, so the term goes on
// once the row is back.
func TestSuspendedLeaderGoesOn(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		h.ask(t.Context(), client)
		epoch := c.e.state().Epoch
		a.cut.Store(true)
		advance(5 * lease)
		if c.leader() != "" {
			t.Error("leads without a lease")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.Timestamp(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not the leader") {
			t.Errorf("without a leader: %v", err)
		}
		a.cut.Store(false)
		advance(lease)
		h.ask(t.Context(), client)
		if e := c.e.state().Epoch; e != epoch {
			t.Errorf("epoch %d, was %d", e, epoch)
		}
	})
}

// TestGracefulHandover takes no lease: a candidate that is asked looks at once.
func TestGracefulHandover(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a", "b")
		h := newHistory(t)
		high := h.ask(t.Context(), client)
		start := time.Now()
		a.stop()
		if err := <-a.ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		ended := time.Since(start)
		h.ask(t.Context(), client)
		if d := time.Since(start) - ended; d > 100*time.Millisecond {
			t.Errorf("handover took %s more", d)
		}
		if ended > 500*time.Millisecond {
			t.Errorf("stopping took %s", ended)
		}
		if h.highest() > now() || h.highest() <= high {
			t.Errorf("%d after %d at %d", h.highest(), high, now())
		}
	})
}

// TestNothingAfterRelease: the lease that is given up names the last timestamp
// handed out, so there must be none while that is on its way.
func TestNothingAfterRelease(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{GraceTimeout: time.Minute})
		advance(lease / 6) // between two renewals
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := tsopb.NewOracleClient(c.raw("a")).Timestamps(ctx)
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
		g := newGate(cam, false)
		c.e.on(g.hook)
		a.stop()
		<-g.held
		if r := ask(); r.NotLeader == nil {
			t.Errorf("handed out %d while the lease is being released", r.First)
		}
		c.e.on(nil)
		close(g.open)
		cancel()
		if err := <-a.ended; err != nil {
			t.Error(err)
		}
		if s := c.e.state(); !s.Released {
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
		served(t, func(t *testing.T, c *cluster) {
			a := c.start("a", tso.ServerConfig{})
			synctest.Wait()
			c.start("b", tso.ServerConfig{})
			advance(lease / 2)
			var paused atomic.Int32
			resume := make(chan struct{})
			a.Between(func() {
				if paused.Add(1) == 1 {
					a.cut.Store(true) // a stopped process writes nothing either
					<-resume
				}
			}, unchecked)
			type answer struct {
				res *tsopb.TimestampsResponse
				err error
			}
			answered := make(chan answer, 1)
			go func() {
				res, err := c.one("a", tso.FormatVersion, 1)
				answered <- answer{res, err}
			}()
			fresh := c.client(tso.ClientConfig{}, "b")
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
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{RPCTimeout: time.Minute})
		synctest.Wait()
		g := newGate(cam, true)
		c.e.on(g.hook)
		<-g.held // a renewal has landed, its answer is on the way
		sent := time.Now()
		advance(lease - lease/10 - time.Millisecond)
		// The one before was an interval earlier, so it is over by now.
		if c.leader() != "" {
			t.Error("leads on a renewal that was not acknowledged")
		}
		next := newGate(cam, false)
		c.e.on(next.hook)
		close(g.open)
		<-next.held // the renewal after it does not get through
		if st := c.status("a"); !st.Leading || st.LeaseLeftUs > time.Until(sent.Add(lease-lease/10)).Microseconds() {
			t.Errorf("leading %t, lease left %d µs", st.Leading, st.LeaseLeftUs)
		}
		advance(time.Millisecond)
		if c.leader() != "" {
			t.Error("leads longer than the lease from when it was sent")
		}
		c.e.on(nil)
		close(next.open)
	})
}

// TestLateRenewalDoesNotPutTheLimitBack delays a write of the leader past the
// next one.
func TestLateRenewalDoesNotPutTheLimitBack(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		var late func() (any, error)
		c.e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m == cam && late == nil {
				late = call
				return nil, status.Error(codes.DeadlineExceeded, "delayed")
			}
			return call()
		})
		advance(3 * lease)
		if late == nil {
			t.Fatal("the fault did not fire")
		}
		h.ask(t.Context(), client)
		before := c.e.state()
		_, _ = late()
		if after := c.e.state(); after != before {
			t.Errorf("a late write changed the row: %+v, before %+v", after, before)
		}
		if before.Limit < h.highest() {
			t.Errorf("limit %d below %d", before.Limit, h.highest())
		}
	})
}

// TestFaultAtEveryWrite runs an election, renewals and a handover with one
// fault at the k-th request to Bigtable, for all k.
func TestFaultAtEveryWrite(t *testing.T) {
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			methods := map[string]int{}
			k := 0
			for fired := true; fired; k++ {
				fired = false
				served(t, func(t *testing.T, c *cluster) {
					var mu sync.Mutex
					n := 0
					c.e.on(func(_ context.Context, method string, call func() (any, error)) (any, error) {
						mu.Lock() // two servers at once
						now := n == k
						n++
						fired = fired || now
						now = now && (method != read || fault.name[:3] != "dup")
						if now {
							methods[method]++
						}
						mu.Unlock()
						if !now {
							return call()
						}
						return fault.do(call)
					})
					h := newHistory(t)
					a := c.start("a", tso.ServerConfig{})
					advance(10 * time.Millisecond)
					c.start("b", tso.ServerConfig{})
					client := c.client(tso.ClientConfig{}, "a", "b")
					h.ask(t.Context(), client)
					advance(lease)
					h.ask(t.Context(), client)
					a.stop()
					h.ask(t.Context(), client)
					advance(lease)
					h.ask(t.Context(), client)
					c.e.on(nil)
					h.check(4)
					if h.highest() > now()+tso.Timestamp(lease.Microseconds()) {
						t.Errorf("overshot: %d at %d", h.highest(), now())
					}
					if s := c.e.state(); s.Limit < h.highest() {
						t.Errorf("limit %d below %d", s.Limit, h.highest())
					}
				})
				if t.Failed() {
					t.Fatalf("with the fault at request %d", k)
				}
				if k > 60 {
					break // renewals go on for ever
				}
			}
			if methods[cam] < 5 {
				t.Errorf("fired at %v", methods)
			}
		})
	}
}

func TestRacingCandidates(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		const candidates = 6
		g := newGate(cam, false)
		c.e.on(g.hook)
		var names []string
		for i := range candidates {
			names = append(names, fmt.Sprint("s", i))
			c.start(names[i], tso.ServerConfig{})
		}
		for range candidates {
			<-g.held // all saw the released lease and try to take it
		}
		close(g.open)
		c.e.on(nil)
		client := c.client(tso.ClientConfig{}, names...)
		h := newHistory(t)
		h.ask(t.Context(), client)
		if c.leader() == "" {
			t.Error("nobody leads")
		}
		if s := c.e.state(); s.Epoch != 2 {
			t.Errorf("epoch %d", s.Epoch)
		}
	})
}

// TestCandidateNeedsTheWholeLease: what a candidate saw counts from when it
// received it, and the length is the leader's.
func TestCandidateNeedsTheWholeLease(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{Lease: 20 * time.Second})
		synctest.Wait()
		a.cut.Store(true)
		last := time.Now()
		advance(7 * time.Second)
		start := time.Now()
		c.start("b", tso.ServerConfig{Lease: time.Second}) // shorter, and late
		for c.leader() != "b" {
			if time.Since(last) > time.Minute {
				t.Fatal("no takeover")
			}
			advance(50 * time.Millisecond)
		}
		if d := time.Since(start); d < 20*time.Second || d > 21*time.Second {
			t.Errorf("took over %s after it came", d)
		}
	})
}
