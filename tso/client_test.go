package tso_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestLateCallerNotInBatchSent is the client's part of order in real time.
func TestLateCallerNotInBatchSent(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		h := c.Hold(a, 0)
		client, other := c.Client(tso.ClientConfig{}, "a"), c.Client(tso.ClientConfig{}, "a")
		leaving, leave := context.WithCancel(t.Context())
		gone := tsotest.Async(leaving, client)
		<-h.Held
		// It leaves, so its number is free, and below the one that another got.
		leave()
		if r := <-gone; !errors.Is(r.Err, context.Canceled) || r.TS != 0 {
			t.Fatalf("the caller that left: %v", r)
		}
		newer, err := other.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := tsotest.Async(t.Context(), client)
		synctest.Wait()
		close(h.Resume)
		if r := <-late; r.Err != nil || r.TS <= newer {
			t.Errorf("asked for after %d was received, got %v", newer, r)
		}
	})
}

func TestCallersShareRequests(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		h := c.Hold(a, 0)
		client := c.Client(tso.ClientConfig{AttemptTimeout: time.Minute, Timeout: time.Hour}, "a")
		first := tsotest.Async(t.Context(), client)
		<-h.Held
		// More than one request may ask for.
		const callers = tso.MaxCount + 10
		seen := make([]atomic.Bool, callers)
		var base atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				ts, err := client.Timestamp(t.Context())
				i := int64(ts) - base.Load()
				if err != nil || i < 0 || i >= callers || seen[i].Swap(true) {
					t.Errorf("%d, %v", i, err)
				}
			})
		}
		synctest.Wait()
		base.Store(int64(tsotest.Now()) + 1) // time stands still: the held one has now
		close(h.Resume)
		wg.Wait()
		if r := <-first; r.Err != nil || int64(r.TS) >= base.Load() {
			t.Error(r)
		}
		if s := client.Stats(); s != (tso.ClientStats{Requests: 3, Timestamps: callers + 1}) {
			t.Errorf("%+v", s)
		}
	})
}

func TestClientContexts(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		client := c.Client(tso.ClientConfig{AttemptTimeout: time.Hour, Timeout: time.Hour}, "a")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client.Timestamp(ended); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended context: %v", err)
		}
		synctest.Wait()
		if s := client.Stats(); s != (tso.ClientStats{}) {
			t.Errorf("for a caller whose context had ended: %+v", s)
		}
		h := c.Hold(a, 0)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		leaves, stays := tsotest.Async(short, client), tsotest.Async(t.Context(), client)
		if r := <-leaves; !errors.Is(r.Err, context.DeadlineExceeded) {
			t.Errorf("deadline: %v", r)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("left after %s", d)
		}
		close(h.Resume)
		if r := <-stays; r.Err != nil {
			t.Errorf("the caller that stayed: %v", r.Err)
		}
	})
}

func TestClientClose(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		h := c.Hold(a, 0)
		client := c.Client(tso.ClientConfig{}, "a")
		sent := tsotest.Async(t.Context(), client)
		<-h.Held
		next := tsotest.Async(t.Context(), client)
		synctest.Wait()
		for range 2 {
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, r := range []tsotest.Result{<-sent, <-next} {
			if !errors.Is(r.Err, tso.ErrClosed) {
				t.Errorf("waiting at Close: %v", r)
			}
		}
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		close(h.Resume)
	})
}

// TestClientLeavesHungServer: a server that is there and does not answer.
func TestClientLeavesHungServer(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		c.Start("b", server.Config{})
		h := c.Hold(a, 1)
		client := c.Client(tso.ClientConfig{}, "a", "b")
		high, err := client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.CutOff()
		start := time.Now()
		ts, err := client.Timestamp(t.Context())
		if err != nil || ts <= high {
			t.Fatal(ts, err)
		}
		if d := time.Since(start); d < time.Second || d > tsotest.Lease+2*time.Second {
			t.Errorf("took %s", d)
		}
		close(h.Resume)
	})
}

func TestClientFollowsHint(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Start("d", server.Config{})
		synctest.Wait()
		for _, name := range []string{"a", "b", "c"} {
			c.Start(name, server.Config{})
		}
		synctest.Wait()
		client := c.Client(tso.ClientConfig{}, "a", "b", "c", "d")
		if _, err := client.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := client.Stats(); s != (tso.ClientStats{Timestamps: 1, Requests: 1, Failures: 1, Failovers: 1}) {
			t.Errorf("%+v", s)
		}
	})
}

func TestClientWithoutServers(t *testing.T) {
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		client := c.Client(tso.ClientConfig{Timeout: 5 * time.Second}, "nowhere", "here", "nowhere", "here")
		start := time.Now()
		_, err := client.Timestamp(t.Context())
		var unavailable *tso.UnavailableError
		if !errors.As(err, &unavailable) || !errors.Is(err, tso.ErrUnavailable) || len(unavailable.Servers) != 2 {
			t.Fatal(err)
		}
		for _, part := range []string{"passthrough:nowhere", "passthrough:here", "no server nowhere", "for 5"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("the error does not say %q: %v", part, err)
			}
		}
		if d := time.Since(start); d < 5*time.Second || d > 7*time.Second {
			t.Errorf("took %s", d)
		}
	})
}

// script is a server that answers as it is told.
type script struct {
	tsopb.UnimplementedOracleServer
	mu      sync.Mutex // a client that hangs up opens its next stream before the last one has ended
	answers []*tsopb.TimestampsResponse
}

func (s *script) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		answer := s.next()
		if answer == nil {
			return status.Error(codes.Internal, "the script has ended")
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
	}
}

func (s *script) next() *tsopb.TimestampsResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) == 0 {
		return nil
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	return answer
}

func serveScript(c *tsotest.Cluster, name string, answers ...*tsopb.TimestampsResponse) {
	c.E.T.Helper()
	c.ServeAs(name, &script{answers: answers})
}

func TestClientRefusesToGoBackwards(t *testing.T) {
	const at = 1795152600000000
	for _, second := range []int64{at, at - 1, at - 1e9} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			c := tsotest.NewCluster(e)
			serveScript(c, "a", &tsopb.TimestampsResponse{First: at, Count: 1}, &tsopb.TimestampsResponse{First: second, Count: 1}, &tsopb.TimestampsResponse{First: at + 1, Count: 1})
			client := c.Client(tso.ClientConfig{}, "a")
			if ts, err := client.Timestamp(t.Context()); ts != at || err != nil {
				t.Fatal(ts, err)
			}
			_, err := client.Timestamp(t.Context())
			var back *tso.BackwardsError
			if !errors.As(err, &back) || !errors.Is(err, tso.ErrBackwards) || errors.Is(err, tso.ErrUnavailable) || int64(back.Got) != second || back.High != at {
				t.Fatal(err)
			}
			if ts, err := client.Timestamp(t.Context()); ts != at+1 || err != nil {
				t.Errorf("above again: %d, %v", ts, err)
			}
		})
	}
}

// TestClientRefusesToGoBackwardsAfterAFailure: a refusal between two answers changes nothing of
// what the client has seen.
func TestClientRefusesToGoBackwardsAfterAFailure(t *testing.T) {
	const at = 1795152600000000
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		serveScript(c, "a", &tsopb.TimestampsResponse{First: at, Count: 1}, &tsopb.TimestampsResponse{NotLeader: &tsopb.NotLeader{}}, &tsopb.TimestampsResponse{First: at - 1, Count: 1})
		client := c.Client(tso.ClientConfig{}, "a")
		if ts, err := client.Timestamp(t.Context()); ts != at || err != nil {
			t.Fatal(ts, err)
		}
		if ts, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrBackwards) {
			t.Errorf("%d, %v", ts, err)
		}
	})
}

// TestClientDoubtsAJump: one wrong answer, far above the one before it or the first of
// all, does not count. If the next answer confirms it, it does: an operator may have
// advanced the oracle. Before the fix every later answer was below the wrong one.
func TestClientDoubtsAJump(t *testing.T) {
	const at, day = 1795152600000000, 24 * 3600 * 1000000
	for _, tt := range []struct {
		name    string
		answers []int64
		want    []tso.Timestamp
	}{
		{"one wrong answer", []int64{at, int64(tso.Max) - 9, at + 1, at + 2, at + 3}, []tso.Timestamp{at, at + 2, at + 3}},
		{"the first answer is wrong", []int64{int64(tso.Max), at, at + 1}, []tso.Timestamp{at + 1}},
		{"the same answer twice", []int64{at, at + 2*day, at + 2*day, at + 1}, []tso.Timestamp{at, at + 1}},
		{"the oracle was advanced", []int64{at, at + 2*day, at + 2*day + 1, at + 2*day + 2}, []tso.Timestamp{at, at + 2*day + 1, at + 2*day + 2}},
		{"less than a day", []int64{at, at + day, at + 2*day}, []tso.Timestamp{at, at + day, at + 2*day}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
				c := tsotest.NewCluster(e)
				var answers []*tsopb.TimestampsResponse
				for _, first := range tt.answers {
					answers = append(answers, &tsopb.TimestampsResponse{First: first, Count: 1})
				}
				serveScript(c, "a", answers...)
				client := c.Client(tso.ClientConfig{}, "a")
				for _, want := range tt.want {
					if ts, err := client.Timestamp(t.Context()); ts != want || err != nil {
						t.Errorf("%d, %v, want %d", ts, err, want)
					}
				}
			})
		})
	}
}

// TestClientLeavesServerThatWentBackwards: what answered below is a server of
// another deployment, which the next request does not meet again.
func TestClientLeavesServerThatWentBackwards(t *testing.T) {
	const at = 1795152600000000
	below := &tsopb.TimestampsResponse{First: at - 1, Count: 1}
	fill := func(r *tsopb.TimestampsResponse) (all []*tsopb.TimestampsResponse) {
		for range 10 {
			all = append(all, r)
		}
		return all
	}
	backwards := func(t *testing.T, client *tso.Client) {
		t.Helper()
		var back *tso.BackwardsError
		if ts, err := client.Timestamp(t.Context()); !errors.As(err, &back) || back.Address != "passthrough:wrong" {
			t.Fatal(ts, err)
		}
	}
	goesOn := func(t *testing.T, client *tso.Client, want tso.Timestamp) {
		t.Helper()
		start := time.Now()
		if ts, err := client.Timestamp(t.Context()); ts != want || err != nil || time.Since(start) > time.Second {
			t.Errorf("%d, %v after %s", ts, err, time.Since(start))
		}
	}
	// Another server is right.
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		serveScript(c, "wrong", append([]*tsopb.TimestampsResponse{{First: at, Count: 1}}, fill(below)...)...)
		serveScript(c, "right", &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		client := c.Client(tso.ClientConfig{}, "wrong", "right")
		goesOn(t, client, at)
		backwards(t, client)
		goesOn(t, client, at+1)
	})
	// The same address leads to the right server by now.
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		c := tsotest.NewCluster(e)
		serveScript(c, "wrong", append([]*tsopb.TimestampsResponse{{First: at, Count: 1}}, fill(below)...)...)
		client := c.Client(tso.ClientConfig{}, "wrong")
		goesOn(t, client, at)
		serveScript(c, "wrong", &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		backwards(t, client)
		goesOn(t, client, at+1)
	})
}

func TestClientMalformedAnswers(t *testing.T) {
	for _, bad := range []*tsopb.TimestampsResponse{
		{}, {First: 1, Count: 1}, {First: -5, Count: 1}, {First: 1795152600000000, Count: 2}, {First: int64(tso.Max) + 1, Count: 1},
	} {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			c := tsotest.NewCluster(e)
			serveScript(c, "a", bad)
			_, err := c.Client(tso.ClientConfig{Timeout: time.Second}, "a").Timestamp(t.Context())
			if !errors.Is(err, tso.ErrUnavailable) || strings.Contains(err.Error(), "no answer in time") {
				t.Errorf("%v: %v", bad, err)
			}
		})
	}
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
	tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
		const at int64 = 1795152600000000
		c := tsotest.NewCluster(e)
		resume := make(chan struct{})
		requests := 0
		c.Register("a", func(s *grpc.Server) {
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
		client := c.Client(tso.ClientConfig{AttemptTimeout: time.Minute, Timeout: time.Minute}, "a")
		first := tsotest.Async(t.Context(), client)
		synctest.Wait()
		var rest []<-chan tsotest.Result
		for range 5 {
			rest = append(rest, tsotest.Async(t.Context(), client))
		}
		synctest.Wait()
		close(resume)
		if r := <-first; r.Err != nil || r.TS != tso.Timestamp(at) {
			t.Fatal(r)
		}
		for _, c := range rest {
			if r := <-c; !errors.Is(r.Err, tso.ErrBackwards) {
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
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Register("x", func(*grpc.Server) {})
		b := c.Start("b", server.Config{})
		synctest.Wait()
		for _, order := range [][]string{{"b", "x"}, {"x", "b"}} {
			client := c.Client(tso.ClientConfig{Timeout: 2 * tsotest.Lease}, order...)
			if _, err := client.Timestamp(t.Context()); err != nil {
				t.Fatalf("%v: %v", order, err)
			}
			b.CutOff()
			tsotest.Advance(2 * tsotest.Lease)
			if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrUnavailable) {
				t.Errorf("%v, without a leader: %v", order, err)
			}
			back := tsotest.Async(t.Context(), client) // waits for it
			tsotest.Advance(tsotest.Lease / 2)
			b.Cut.Store(false)
			if r := <-back; r.Err != nil {
				t.Errorf("%v: %v", order, r.Err)
			}
			tsotest.Advance(tsotest.Lease)
			failures := client.Stats().Failures
			if _, err := client.Timestamp(t.Context()); err != nil || client.Stats().Failures != failures {
				t.Errorf("%v, the leader is back: %v, %+v", order, err, client.Stats())
			}
		}
		only := c.Client(tso.ClientConfig{}, "x")
		if _, err := only.Timestamp(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("no oracle at all: %v", err)
		}
	})
}

// TestClientDoesNotStayAtWrongServer: the only other server is out of reach, so
// the request fails; the next one starts at the one that was out of reach.
func TestClientDoesNotStayAtWrongServer(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		c.Register("x", func(*grpc.Server) {})
		var clients []*tso.Client
		for _, order := range [][]string{{"b", "x"}, {"x", "b"}} {
			client := c.Client(tso.ClientConfig{}, order...)
			for range 2 { // the last one asked is each of them
				if _, err := client.Timestamp(t.Context()); status.Code(err) != codes.Unimplemented {
					t.Errorf("nobody else: %v", err)
				}
			}
			clients = append(clients, client)
		}
		c.Start("b", server.Config{})
		tsotest.Advance(time.Minute)
		for i, client := range clients {
			failures := client.Stats().Failures
			if _, err := client.Timestamp(t.Context()); err != nil || client.Stats().Failures != failures {
				t.Errorf("client %d: %v, %+v", i, err, client.Stats())
			}
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
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			c := tsotest.NewCluster(e)
			c.Register("a", func(s *grpc.Server) { tsopb.RegisterOracleServer(s, hungServer{}) })
			client := c.Client(tso.ClientConfig{Timeout: timeout}, "a")
			start := time.Now()
			first := tsotest.Async(t.Context(), client)
			synctest.Wait()
			second := tsotest.Async(t.Context(), client)
			for i, r := range []<-chan tsotest.Result{first, second} {
				if r := <-r; !errors.Is(r.Err, tso.ErrUnavailable) {
					t.Errorf("timeout %s: %v", timeout, r)
				}
				if d, most := time.Since(start), time.Duration(i+1)*timeout; d > most || d < most-most/4 {
					t.Errorf("timeout %s: caller %d waited %s", timeout, i+1, d)
				}
			}
		})
	}
}

// Callers that ask all the time share requests: nearly all of them share each one. Before the fix
// it was one half, because the first caller that asked again did not wait for the others.
func TestCallersGather(t *testing.T) {
	long.RacedAtNight(t)
	t.Run("served", func(t *testing.T) {
		tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
			c.Start("a", server.Config{})
			client := c.Client(tso.ClientConfig{}, "a")
			checkGathered(t, client, func() uint64 { return client.Stats().Requests })
		})
	})
	t.Run("direct", func(t *testing.T) {
		tsotest.Bubble(t, func(t *testing.T, e *tsotest.Emulator) {
			d := e.Direct(tso.DirectConfig{})
			checkGathered(t, d, func() uint64 { return d.Stats().RPCs })
		})
	})
}

func checkGathered(t *testing.T, oracle tso.Oracle, requests func() uint64) {
	// With one processor the result does not depend on what else the machine does.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const callers, times = 32, 200
	h := tsotest.NewHistory(t)
	h.Ask(t.Context(), oracle)
	before := requests()
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range times {
				h.Ask(t.Context(), oracle)
			}
		})
	}
	all.Wait()
	h.Check(callers*times + 1)
	n := requests() - before
	t.Logf("%.1f callers a request", float64(callers*times)/float64(n))
	if n > callers*times/20 {
		t.Errorf("%d requests for %d timestamps", n, callers*times)
	}
}
