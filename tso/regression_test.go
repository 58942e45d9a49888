package tso_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// register runs a gRPC server in place of one of the oracle.
func (c *cluster) register(name string, register func(*grpc.Server)) {
	c.e.t.Helper()
	n := &node{lis: bufconn.Listen(1 << 16)}
	c.mu.Lock()
	c.nodes[name] = n
	c.mu.Unlock()
	s := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(n.lis) }()
	c.e.t.Cleanup(func() {
		s.Stop()
		<-done
	})
}

// TestSuspendedWhileRenewalUnknown: a renewal landed, its answer was lost, and
// the machine was suspended before the repetition. Of the lease that was written
// then nothing is left.
func TestSuspendedWhileRenewalUnknown(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		var off atomic.Int64
		a := c.start("a", tso.ServerConfig{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		for range 400 { // a load that brings oracle time ahead of the clock, so that waking up needs no stamp
			if r, err := c.one("a", tso.FormatVersion, tso.MaxCount); err != nil || r.NotLeader != nil {
				t.Fatal(r, err)
			}
			synctest.Wait()
		}
		var writes atomic.Int32
		c.e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			if m != cam {
				return call()
			}
			switch writes.Add(1) {
			case 1:
				_, _ = call()
				a.cut.Store(true) // nor can the outcome be read
				return nil, status.Error(codes.Unavailable, "answer lost")
			case 2:
				return call() // does not match
			}
			return nil, status.Error(codes.Unavailable, "down")
		})
		for writes.Load() == 0 {
			advance(time.Millisecond)
		}
		synctest.Wait()              // its outcome is unknown by now
		off.Store(int64(10 * lease)) // the monotonic clock stood still
		a.cut.Store(false)
		for writes.Load() < 2 {
			advance(time.Millisecond)
		}
		for range 100 {
			if r, err := c.one("a", tso.FormatVersion, 1); err == nil && r.NotLeader == nil {
				t.Fatalf("answered %d ten leases after the last write that landed", r.First)
			}
			advance(lease / 100)
		}
		c.e.on(nil)
	})
}

// TestRepairFencesLeader: a row that was put into direct mode by hand ends the
// term of a leader that was overlooked, whose lease is still there.
func TestRepairFencesLeader(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a")
		h := newHistory(t)
		h.ask(t.Context(), client)
		a.cut.Store(true) // "everything is stopped"
		advance(time.Minute)
		c.e.putInt(int64(h.highest()))
		direct := c.e.direct(tso.DirectConfig{})
		h.ask(t.Context(), direct)
		a.cut.Store(false)
		advance(lease)
		if c.leader() != "" {
			t.Error("leads while the row is in direct mode")
		}
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrMode) {
			t.Errorf("served in direct mode: %v", err)
		}
		h.ask(t.Context(), direct)
	})
}

// TestSwitchToDirectNeedsServedMode: the request of a switch that was delayed
// past a repair by hand does not put the value back.
func TestSwitchToDirectNeedsServedMode(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		g := newGate(cam, false)
		c.e.on(g.hook)
		switched := make(chan error, 1)
		table := c.e.table("percolator")
		go func() {
			_, err := tso.SetMode(context.Background(), table, tso.RowConfig{}, tso.ModeDirect)
			switched <- err
		}()
		<-g.held
		c.e.on(nil)
		repaired := int64(now()) + 1e9
		c.e.putInt(repaired)
		close(g.open)
		<-switched
		if s := c.e.state(); s.Mode != tso.ModeDirect || int64(s.Limit) != repaired {
			t.Errorf("%+v, repaired to %d", s, repaired)
		}
	})
}

// TestDirectStartsAboveTheLimit: no value of direct mode is one of before.
func TestDirectStartsAboveTheLimit(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		limit := c.e.state().Limit
		c.e.setMode(tso.ModeDirect)
		if s := c.e.state(); s.Limit != limit+1 {
			t.Errorf("direct mode starts at %d, the limit was %d", s.Limit, limit)
		}
	})
}

// answering is a server that answers with what f returns.
type answering struct {
	tsopb.UnimplementedOracleServer
	f func(*tsopb.TimestampsRequest) *tsopb.TimestampsResponse
}

func (s *answering) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if err := stream.Send(s.f(req)); err != nil {
			return err
		}
	}
}

// TestClientRefusesOverflow: a range that ends past the largest integer is
// malformed, and does not lower what the client remembers.
func TestClientRefusesOverflow(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		const at = 1795152600000000
		c := newCluster(e)
		resume := make(chan struct{})
		requests := 0
		c.register("a", func(s *grpc.Server) {
			tsopb.RegisterOracleServer(s, &answering{f: func(req *tsopb.TimestampsRequest) *tsopb.TimestampsResponse {
				requests++
				switch requests {
				case 1:
					<-resume
					return &tsopb.TimestampsResponse{First: at, Count: req.Count}
				case 2:
					return &tsopb.TimestampsResponse{First: math.MaxInt64 - 1, Count: req.Count}
				}
				return &tsopb.TimestampsResponse{First: at - 1000, Count: req.Count}
			}})
		})
		client := c.client(tso.ClientConfig{AttemptTimeout: time.Minute, Timeout: time.Minute}, "a")
		first := async(t.Context(), client)
		synctest.Wait()
		var rest []<-chan result
		for range 5 {
			rest = append(rest, async(t.Context(), client))
		}
		synctest.Wait()
		close(resume)
		if r := <-first; r.err != nil || r.ts != at {
			t.Fatal(r)
		}
		for _, c := range rest {
			if r := <-c; !errors.Is(r.err, tso.ErrBackwards) {
				t.Errorf("%+v", r)
			}
		}
		if ts, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrBackwards) {
			t.Errorf("%d after %d, %v", ts, at, err)
		}
	})
}

// TestClientLeavesWrongServer: one of the addresses is no oracle. That is no
// reason to give up while another server may lead, nor to stay there.
func TestClientLeavesWrongServer(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.register("x", func(*grpc.Server) {})
		b := c.start("b", tso.ServerConfig{})
		synctest.Wait()
		for _, order := range [][]string{{"b", "x"}, {"x", "b"}} {
			client := c.client(tso.ClientConfig{Timeout: 2 * lease}, order...)
			locks := client.Locks()
			if _, err := client.Timestamp(t.Context()); err != nil {
				t.Fatalf("%v: %v", order, err)
			}
			if ok, _, err := locks.Acquire(t.Context(), "l", "x", lease); err != nil || !ok {
				t.Errorf("%v: lock: %t, %v", order, ok, err)
			}
			b.cut.Store(true)
			advance(2 * lease)
			if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrUnavailable) {
				t.Errorf("%v, without a leader: %v", order, err)
			}
			if _, _, err := locks.Acquire(t.Context(), "l", "x", lease); !errors.Is(err, tso.ErrUnavailable) {
				t.Errorf("%v, lock without a leader: %v", order, err)
			}
			back := async(t.Context(), client) // waits for it
			advance(lease / 2)
			b.cut.Store(false)
			if r := <-back; r.err != nil {
				t.Errorf("%v: %v", order, r.err)
			}
			advance(lease)
			failures := client.Stats().Failures
			if _, err := client.Timestamp(t.Context()); err != nil || client.Stats().Failures != failures {
				t.Errorf("%v, the leader is back: %v, %+v", order, err, client.Stats())
			}
		}
		only := c.client(tso.ClientConfig{}, "x")
		if _, err := only.Timestamp(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("no oracle at all: %v", err)
		}
		if _, _, err := only.Locks().Acquire(t.Context(), "l", "x", lease); status.Code(err) != codes.Unimplemented {
			t.Errorf("lock: %v", err)
		}
	})
}

// TestClientDoesNotStayAtWrongServer: the only other server is out of reach, so
// the request fails; the next one starts at the one that was out of reach.
func TestClientDoesNotStayAtWrongServer(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.register("x", func(*grpc.Server) {})
		client := c.client(tso.ClientConfig{}, "b", "x")
		if _, err := client.Timestamp(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("nobody else: %v", err)
		}
		c.start("b", tso.ServerConfig{})
		advance(time.Minute)
		failures := client.Stats().Failures
		if _, err := client.Timestamp(t.Context()); err != nil || client.Stats().Failures != failures {
			t.Errorf("%v, %+v", err, client.Stats())
		}
	})
}

// TestFailedTakeoverBacksOff, however many clients ask meanwhile.
func TestFailedTakeoverBacksOff(t *testing.T) {
	for _, code := range []codes.Code{codes.PermissionDenied, codes.Unavailable} {
		served(t, func(t *testing.T, c *cluster) {
			var writes atomic.Int32
			c.e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
				if m == cam || m == mutate {
					writes.Add(1)
					return nil, status.Error(code, "no")
				}
				return call()
			})
			c.start("a", tso.ServerConfig{})
			advance(5 * time.Second)
			writes.Store(0)
			for range 1000 {
				_, _ = c.one("a", tso.FormatVersion, 1)
				advance(10 * time.Millisecond)
			}
			if n := writes.Load(); n < 3 || n > 40 {
				t.Errorf("%s: %d writes in 10 s", code, n)
			}
			c.e.on(nil)
			advance(4 * time.Second)
			if c.leader() != "a" {
				t.Errorf("%s: does not lead when it may", code)
			}
		})
	}
}

// TestStopDuringTakeover: a lease that was taken while the server was stopped is
// released.
func TestStopDuringTakeover(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		limit := c.e.state().Limit
		g := newGate(cam, true)
		c.e.on(g.hook)
		a := c.start("a", tso.ServerConfig{})
		<-g.held // it has landed
		c.e.on(nil)
		a.stop()
		<-a.ended
		close(g.open)
		if s := c.e.state(); !s.Released || s.Limit < limit || s.Epoch != 2 {
			t.Errorf("%+v, the limit was %d", s, limit)
		}
		c.start("b", tso.ServerConfig{})
		start := time.Now()
		if _, err := c.client(tso.ClientConfig{}, "b").Timestamp(t.Context()); err != nil || time.Since(start) > lease/2 {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// hungServer accepts requests and never answers.
type hungServer struct {
	tsopb.UnimplementedOracleServer
}

func (hungServer) Timestamps(s grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	<-s.Context().Done()
	return s.Context().Err()
}

// TestClientTimeoutBoundsAttempts: also the first one, and twice the time is
// what a second caller waits at most.
func TestClientTimeoutBoundsAttempts(t *testing.T) {
	for _, timeout := range []time.Duration{100 * time.Millisecond, 1500 * time.Millisecond, 10 * time.Second} {
		bubble(t, func(t *testing.T, e *emulator) {
			c := newCluster(e)
			c.register("a", func(s *grpc.Server) { tsopb.RegisterOracleServer(s, hungServer{}) })
			client := c.client(tso.ClientConfig{Timeout: timeout}, "a")
			start := time.Now()
			first := async(t.Context(), client)
			synctest.Wait()
			second := async(t.Context(), client)
			for i, r := range []<-chan result{first, second} {
				if r := <-r; !errors.Is(r.err, tso.ErrUnavailable) {
					t.Errorf("timeout %s: %v", timeout, r)
				}
				if d, most := time.Since(start), time.Duration(i+1)*timeout; d > most || d < most-most/4 {
					t.Errorf("timeout %s: caller %d waited %s", timeout, i+1, d)
				}
			}
		})
	}
}

// stuckLocks answer nothing until the context ends.
type stuckLocks struct {
	mu    sync.Mutex
	calls int
}

func (l *stuckLocks) stuck(ctx context.Context) error {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (l *stuckLocks) Acquire(ctx context.Context, _, _ string, _ time.Duration) (bool, tso.Holder, error) {
	return false, tso.Holder{}, l.stuck(ctx)
}
func (l *stuckLocks) Release(ctx context.Context, _, _ string) error { return l.stuck(ctx) }
func (l *stuckLocks) Holder(ctx context.Context, _ string) (tso.Holder, error) {
	return tso.Holder{}, l.stuck(ctx)
}

// TestFallbackLocksLeaveTimeForTheSecond: a first that hangs does not use up the
// time of the second, and costs it once in a while only.
func TestFallbackLocksLeaveTimeForTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &stuckLocks{}, tso.NewMemoryLocks()
		locks := tso.FallbackLocks(first, second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tso.HoldToken(ctx, locks, "w", 6*time.Second) }()
		advance(4 * time.Second)
		for range 56 {
			if second.Len() != 1 {
				t.Fatal("the token is not held in the second")
			}
			advance(time.Second)
		}
		start := time.Now()
		for range 10 {
			if ok, _, err := locks.Acquire(t.Context(), "l", "x", time.Minute); err != nil || !ok {
				t.Error(ok, err)
			}
			if by, err := locks.Holder(t.Context(), "l"); err != nil || by.Owner != "x" {
				t.Error(by, err)
			}
			if err := locks.Release(t.Context(), "l", "x"); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("30 calls took %s", d)
		}
		calls := first.calls
		if err := locks.Release(t.Context(), "l", "x"); err != nil || first.calls != calls+1 {
			t.Errorf("the first was not asked to release: %v", err)
		}
		cancel()
		start = time.Now()
		if err := <-ended; err != nil || time.Since(start) > 4*time.Second || second.Len() != 0 {
			t.Errorf("%v after %s, %d locks left", err, time.Since(start), second.Len())
		}
	})
}

// TestFallbackLocksReturnToTheFirst once it is back.
func TestFallbackLocksReturnToTheFirst(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		second := tso.NewMemoryLocks()
		locks := tso.FallbackLocks(c.client(tso.ClientConfig{Timeout: time.Second}, "a").Locks(), second)
		for i, want := range []int{1, 1, 0} {
			if ok, _, err := locks.Acquire(t.Context(), "l", "x", 2*time.Second); err != nil || !ok || second.Len() != want {
				t.Errorf("%t, %v, %d locks in the second, want %d", ok, err, second.Len(), want)
			}
			if i == 0 {
				c.start("a", tso.ServerConfig{})
			}
			advance(3 * time.Second)
		}
	})
}

// TestCandidateCountsFromReceiving: the lease that a slow read shows may have
// been renewed right before the read was answered, not when it was sent.
func TestCandidateCountsFromReceiving(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		a.cut.Store(true)
		var mu sync.Mutex
		var received, took time.Time
		var first atomic.Bool
		c.e.on(func(_ context.Context, m string, call func() (any, error)) (any, error) {
			slow := m == read && !first.Swap(true)
			if slow {
				advance(lease / 2)
			}
			res, err := call()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case slow:
				received = time.Now()
			case m == cam && took.IsZero():
				took = time.Now()
			}
			return res, err
		})
		c.start("b", tso.ServerConfig{RPCTimeout: time.Minute})
		advance(5 * lease)
		mu.Lock()
		defer mu.Unlock()
		if took.IsZero() || took.Sub(received) < lease {
			t.Errorf("took over at %s, %s after the first answer", took, took.Sub(received))
		}
		c.e.on(nil)
	})
}

// TestRestoredRow: the row was put back behind the back of servers, which
// remember more than it says.
func TestRestoredRow(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		row, err := c.e.table("percolator").ReadRow(t.Context(), "oracle")
		if err != nil {
			t.Fatal(err)
		}
		c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		c.rush("a", 300)
		m := bigtable.NewMutation()
		for _, item := range row["tso"] {
			m.DeleteCellsInColumn("tso", item.Column[len("tso:"):])
			m.Set("tso", item.Column[len("tso:"):], item.Timestamp, item.Value)
		}
		c.e.apply(m)
		for range 3 {
			advance(lease)
			for _, name := range []string{"a", "b"} {
				if _, err := c.client(tso.ClientConfig{}, name).Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

// rush takes so many timestamps that oracle time is ahead of the clock, and
// returns the last one.
func (c *cluster) rush(name string, requests int) (high tso.Timestamp) {
	c.e.t.Helper()
	for range requests {
		r, err := c.one(name, tso.FormatVersion, tso.MaxCount)
		if err != nil || r.NotLeader != nil {
			c.e.t.Fatal(r, err)
		}
		high = tso.Timestamp(r.First) + tso.MaxCount - 1
		synctest.Wait()
	}
	return high
}

// TestVanishedRow: neither who led nor who stood by takes a row that was deleted
// for one that was never used, nor for a new one.
func TestVanishedRow(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		b := c.start("b", tso.ServerConfig{})
		high := c.rush("a", 20)
		refuse := func() {
			t.Helper()
			advance(lease)
			for _, name := range []string{"a", "b"} {
				if _, err := c.client(tso.ClientConfig{}, name).Timestamp(t.Context()); !errors.Is(err, tso.ErrCorrupt) {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		c.e.deleteRow()
		refuse()
		c.e.setMode(tso.ModeServed)
		refuse()
		// The repair that the error names.
		a.stop()
		b.stop()
		<-a.ended
		<-b.ended
		c.e.putInt(int64(high))
		m := bigtable.NewMutation()
		m.DeleteCellsInColumn("tso", "lease")
		c.e.apply(m)
		c.e.setMode(tso.ModeServed)
		c.start("c", tso.ServerConfig{})
		if ts, err := c.client(tso.ClientConfig{}, "c").Timestamp(t.Context()); err != nil || ts <= high {
			t.Errorf("%d after %d, %v", ts, high, err)
		}
	})
}

// TestReleaseMayLowerTheLimit: who has seen a large range reserved takes over
// from one that gave back what it did not use.
func TestReleaseMayLowerTheLimit(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		high := c.rush("a", 300)
		advance(lease / 6)
		limit := c.e.state().Limit
		a.stop()
		<-a.ended
		if s := c.e.state(); s.Limit >= limit || s.Limit < high {
			t.Errorf("released at %d, was %d, highest %d", s.Limit, limit, high)
		}
		advance(lease / 6)
		if ts, err := c.client(tso.ClientConfig{}, "b").Timestamp(t.Context()); err != nil || ts <= high {
			t.Errorf("%d after %d, %v", ts, high, err)
		}
	})
}
