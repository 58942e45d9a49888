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

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// holding holds the first answer of a leader back, once.
type holding struct {
	held, resume chan struct{}
	used         atomic.Bool
}

func hold(n *node) *holding {
	h := &holding{held: make(chan struct{}), resume: make(chan struct{})}
	n.Between(func() {
		if !h.used.Swap(true) {
			close(h.held)
			<-h.resume
		}
	}, false)
	return h
}

// TestLateCallerNotInBatchSent is the client's part of order in real time.
func TestLateCallerNotInBatchSent(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		h := hold(a)
		client, other := c.client(tso.ClientConfig{}, "a"), c.client(tso.ClientConfig{}, "a")
		leaving, leave := context.WithCancel(t.Context())
		gone := async(leaving, client)
		<-h.held
		// It leaves, so its number is free, and below the one that another got.
		leave()
		if r := <-gone; !errors.Is(r.err, context.Canceled) || r.ts != 0 {
			t.Fatalf("the caller that left: %v", r)
		}
		newer, err := other.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		late := async(t.Context(), client)
		synctest.Wait()
		close(h.resume)
		if r := <-late; r.err != nil || r.ts <= newer {
			t.Errorf("asked for after %d was received, got %v", newer, r)
		}
	})
}

func TestCallersShareRequests(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		h := hold(a)
		client := c.client(tso.ClientConfig{AttemptTimeout: time.Minute, Timeout: time.Hour}, "a")
		first := async(t.Context(), client)
		<-h.held
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
		base.Store(int64(now()) + 1) // time stands still: the held one has now
		close(h.resume)
		wg.Wait()
		if r := <-first; r.err != nil || int64(r.ts) >= base.Load() {
			t.Error(r)
		}
		if s := client.Stats(); s.Requests != 3 || s.Timestamps != callers+1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestClientContexts(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		client := c.client(tso.ClientConfig{AttemptTimeout: time.Hour, Timeout: time.Hour}, "a")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := client.Timestamp(ended); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended context: %v", err)
		}
		h := hold(a)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		leaves, stays := async(short, client), async(t.Context(), client)
		if r := <-leaves; !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("deadline: %v", r)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("left after %s", d)
		}
		close(h.resume)
		if r := <-stays; r.err != nil {
			t.Errorf("the caller that stayed: %v", r.err)
		}
	})
}

func TestClientClose(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		h := hold(a)
		client := c.client(tso.ClientConfig{}, "a")
		sent := async(t.Context(), client)
		<-h.held
		next := async(t.Context(), client)
		synctest.Wait()
		for range 2 {
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, r := range []result{<-sent, <-next} {
			if !errors.Is(r.err, tso.ErrClosed) {
				t.Errorf("waiting at Close: %v", r)
			}
		}
		if _, err := client.Timestamp(t.Context()); !errors.Is(err, tso.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, _, err := client.Locks().Acquire(t.Context(), "x", "y", time.Second); err == nil {
			t.Error("a lock after Close")
		}
		close(h.resume)
	})
}

// TestClientLeavesHungServer: a server that is there and does not answer.
func TestClientLeavesHungServer(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		a := c.start("a", tso.ServerConfig{})
		synctest.Wait()
		c.start("b", tso.ServerConfig{})
		client := c.client(tso.ClientConfig{}, "a", "b")
		high, err := client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.cut.Store(true)
		h := hold(a)
		start := time.Now()
		ts, err := client.Timestamp(t.Context())
		if err != nil || ts <= high {
			t.Fatal(ts, err)
		}
		if d := time.Since(start); d < time.Second || d > lease+2*time.Second {
			t.Errorf("took %s", d)
		}
		close(h.resume)
	})
}

func TestClientFollowsHint(t *testing.T) {
	served(t, func(t *testing.T, c *cluster) {
		c.start("d", tso.ServerConfig{})
		synctest.Wait()
		for _, name := range []string{"a", "b", "c"} {
			c.start(name, tso.ServerConfig{})
		}
		synctest.Wait()
		client := c.client(tso.ClientConfig{}, "a", "b", "c", "d")
		if _, err := client.Timestamp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := client.Stats(); s.Failovers != 1 || s.Failures != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestClientWithoutServers(t *testing.T) {
	bubble(t, func(t *testing.T, e *emulator) {
		c := newCluster(e)
		client := c.client(tso.ClientConfig{Timeout: 5 * time.Second}, "nowhere", "here")
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
			return status.Error(codes.Internal, "the script is over")
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

func (c *cluster) script(name string, answers ...*tsopb.TimestampsResponse) {
	c.e.t.Helper()
	c.serveAs(name, &script{answers: answers})
}

func TestClientRefusesToGoBackwards(t *testing.T) {
	const at = 1795152600000000
	for _, second := range []int64{at, at - 1, at - 1e9} {
		bubble(t, func(t *testing.T, e *emulator) {
			c := newCluster(e)
			c.script("a", &tsopb.TimestampsResponse{First: at, Count: 1}, &tsopb.TimestampsResponse{First: second, Count: 1}, &tsopb.TimestampsResponse{First: at + 1, Count: 1})
			client := c.client(tso.ClientConfig{}, "a")
			if ts, err := client.Timestamp(t.Context()); ts != at || err != nil {
				t.Fatal(ts, err)
			}
			_, err := client.Timestamp(t.Context())
			var back *tso.BackwardsError
			if !errors.As(err, &back) || !errors.Is(err, tso.ErrBackwards) || int64(back.Got) != second || back.High != at {
				t.Fatal(err)
			}
			if ts, err := client.Timestamp(t.Context()); ts != at+1 || err != nil {
				t.Errorf("above again: %d, %v", ts, err)
			}
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
	bubble(t, func(t *testing.T, e *emulator) {
		c := newCluster(e)
		c.script("wrong", append([]*tsopb.TimestampsResponse{{First: at, Count: 1}}, fill(below)...)...)
		c.script("right", &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		client := c.client(tso.ClientConfig{}, "wrong", "right")
		goesOn(t, client, at)
		backwards(t, client)
		goesOn(t, client, at+1)
	})
	// The same address leads to the right server by now.
	bubble(t, func(t *testing.T, e *emulator) {
		c := newCluster(e)
		c.script("wrong", append([]*tsopb.TimestampsResponse{{First: at, Count: 1}}, fill(below)...)...)
		client := c.client(tso.ClientConfig{}, "wrong")
		goesOn(t, client, at)
		c.script("wrong", &tsopb.TimestampsResponse{First: at + 1, Count: 1})
		backwards(t, client)
		goesOn(t, client, at+1)
	})
}

func TestClientMalformedAnswers(t *testing.T) {
	for _, bad := range []*tsopb.TimestampsResponse{
		{}, {First: 1, Count: 1}, {First: -5, Count: 1}, {First: 1795152600000000, Count: 2}, {First: int64(tso.Max) + 1, Count: 1},
	} {
		bubble(t, func(t *testing.T, e *emulator) {
			c := newCluster(e)
			c.script("a", bad)
			_, err := c.client(tso.ClientConfig{Timeout: time.Second}, "a").Timestamp(t.Context())
			if !errors.Is(err, tso.ErrUnavailable) {
				t.Errorf("%v: %v", bad, err)
			}
		})
	}
}

func TestReflectionAndTelemetry(t *testing.T) {
	for _, on := range []bool{false, true} {
		served(t, func(t *testing.T, c *cluster) {
			spans := tracetest.NewInMemoryExporter()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
			telemetry := []otelgrpc.Option{otelgrpc.WithTracerProvider(provider)}
			c.start("a", tso.ServerConfig{Reflection: on, Telemetry: telemetry})
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := reflectionpb.NewServerReflectionClient(c.raw("a")).ServerReflectionInfo(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
			r, err := stream.Recv()
			if got := err == nil && strings.Contains(fmt.Sprint(r), "percolator.tso.v1.Oracle"); got != on || !on && status.Code(err) != codes.Unimplemented {
				t.Errorf("reflection %t: %v, %v", on, r, err)
			}
			cancel()
			client := c.client(tso.ClientConfig{Telemetry: telemetry}, "a")
			if _, err := client.Timestamp(t.Context()); err != nil {
				t.Fatal(err)
			}
			_ = client.Close()
			synctest.Wait()
			kinds := map[string]bool{}
			for _, s := range spans.GetSpans() {
				if strings.HasSuffix(s.Name, "Oracle/Timestamps") {
					kinds[s.SpanKind.String()] = true
				}
			}
			if !kinds["client"] || !kinds["server"] {
				t.Errorf("spans of Timestamps: %v", kinds)
			}
		})
	}
}
