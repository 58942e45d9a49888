package tso

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// hintServer answers calls about hints one by one, the last ones like the last answer.
type hintServer struct {
	tsopb.OracleClient
	first func() // runs in the first call

	mu      sync.Mutex
	answers []hintAnswer
	times   []time.Time
	batches []int
	streams []context.Context
}

// A hintAnswer is an error, or a subscription that stands for some time. A server that does not lead says
// so at first, or then.
type hintAnswer struct {
	code      codes.Code
	stands    time.Duration
	notLeader bool
}

func (s *hintServer) answer() hintAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times = append(s.times, time.Now())
	a := s.answers[0]
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	return a
}

// sizes are those of the batches that were sent.
func (s *hintServer) sizes() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

// began is when each request arrived.
func (s *hintServer) began() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.times)
}

func (s *hintServer) PublishHints(_ context.Context, req *tsopb.PublishHintsRequest, _ ...grpc.CallOption) (*tsopb.PublishHintsResponse, error) {
	if req.FormatVersion != FormatVersion {
		return nil, status.Error(codes.Internal, "no version")
	}
	s.mu.Lock()
	s.batches = append(s.batches, len(req.Hints))
	begun := len(s.batches) == 1
	s.mu.Unlock()
	if begun && s.first != nil {
		s.first()
	}
	return &tsopb.PublishHintsResponse{}, status.Error(s.answer().code, "injected")
}

func (s *hintServer) SubscribeHints(ctx context.Context, req *tsopb.SubscribeHintsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[tsopb.SubscribeHintsResponse], error) {
	if req.FormatVersion != FormatVersion || len(req.Topics) != 1 || string(req.Topics[0]) != "t" {
		return nil, status.Error(codes.Internal, "not what was subscribed")
	}
	s.mu.Lock()
	open := slices.ContainsFunc(s.streams, func(earlier context.Context) bool { return earlier.Err() == nil })
	s.streams = append(s.streams, ctx)
	s.mu.Unlock()
	if open {
		return nil, status.Error(codes.InvalidArgument, "an earlier stream is open")
	}
	a := s.answer()
	if a.stands == 0 && !a.notLeader {
		return nil, status.Error(a.code, "injected")
	}
	return &hintsOfServer{ctx: ctx, hintAnswer: a}, nil
}

type hintsOfServer struct {
	grpc.ServerStreamingClient[tsopb.SubscribeHintsResponse]
	hintAnswer
	ctx context.Context
	n   int
}

func (s *hintsOfServer) Recv() (*tsopb.SubscribeHintsResponse, error) {
	refused := &tsopb.SubscribeHintsResponse{NotLeader: &tsopb.NotLeader{}}
	switch s.n++; s.n {
	case 1:
		if s.stands == 0 {
			return refused, nil
		}
		return &tsopb.SubscribeHintsResponse{}, nil
	case 2:
		return &tsopb.SubscribeHintsResponse{Hints: []*tsopb.Hint{{Topic: []byte("t"), Key: []byte("k")}, {Topic: []byte("t"), Key: []byte("l")}}}, nil
	}
	select {
	case <-time.After(s.stands):
		if s.notLeader {
			s.stands = time.Hour
			return refused, nil
		}
	case <-s.ctx.Done():
	}
	return nil, status.Error(codes.Unavailable, "injected")
}

func newHintServer(t *testing.T, answers ...hintAnswer) (*clientHints, *hintServer) {
	t.Helper()
	r, _ := newFleet(t, 10*time.Second, nil)
	s := &hintServer{answers: answers}
	server := r.servers.all[0]
	server.link.Store(&link{server.link.Load().conn, s})
	return newClientHints(r.servers, slog.New(slog.DiscardHandler)), s
}

// checkPauses compares the pauses between calls with those after so many failures, and what comes before each.
func checkPauses(t *testing.T, times []time.Time, after []time.Duration, failures []int) {
	t.Helper()
	for i, n := range failures {
		if len(times) < i+2 {
			t.Errorf("%d calls, want more than %d", len(times), len(failures))
			return
		}
		least, below := time.Duration(0), time.Duration(1)
		if n > 0 {
			least, below = 5*time.Millisecond<<(n-1), 10*time.Millisecond<<(n-1)
		}
		if got := times[i+1].Sub(times[i]) - after[i]; got < least || got >= below {
			t.Errorf("pause %d is %v, want %v to %v", i, got, least, below)
		}
	}
	if row.Backoff(1) >= 10*time.Millisecond {
		t.Error("the pauses are others")
	}
}

// TestPaceOfSubscription: the pauses of a subscriber grow, until a subscription has stood for a second. A
// server that does not know hints is left alone for longer.
func TestPaceOfSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := hintAnswer{code: codes.Unavailable}
		short, long, refuses := hintAnswer{stands: 500 * time.Millisecond}, hintAnswer{stands: time.Second, notLeader: true}, hintAnswer{notLeader: true}
		h, s := newHintServer(t, refuses, fails, short, fails, long, fails, hintAnswer{code: codes.Unimplemented}, fails, long, hintAnswer{code: codes.InvalidArgument})
		var got []string
		err := h.subscribe(t.Context(), []string{"t", "t"}, func(hint Hint) {
			if n := h.subscriptions.Load(); n != 1 {
				t.Errorf("%d subscriptions", n)
			}
			got = append(got, hint.Topic+hint.Key)
		})
		if status.Code(err) != codes.InvalidArgument || !slices.Equal(got, []string{"tk", "tl", "tk", "tl", "tk", "tl"}) || h.received.Load() != 6 || h.subscriptions.Load() != 0 {
			t.Errorf("%v, received %v", err, got)
		}
		checkPauses(t, s.began(),
			[]time.Duration{0, 0, short.stands, 0, long.stands, 0, hintRest, 0, long.stands},
			[]int{1, 2, 3, 4, 1, 2, 0, 4, 1})
		// Nothing is delivered after the end of its context.
		h, _ = newHintServer(t, long)
		ctx, cancel := context.WithCancel(t.Context())
		if err := h.subscribe(ctx, []string{"t"}, func(Hint) { cancel() }); err != nil || h.received.Load() != 1 {
			t.Errorf("%v, %d hints", err, h.received.Load())
		}
		// It ends with its context, and with the client.
		for _, closes := range []bool{false, true} {
			h, _ := newHintServer(t, hintAnswer{stands: time.Hour})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- h.subscribe(ctx, []string{"t"}, func(Hint) {}) }()
			synctest.Wait()
			if h.subscriptions.Load() != 1 {
				t.Error("there is no subscription")
			}
			var want error
			if closes {
				want = ErrClosed
				h.servers.end()
			} else {
				cancel()
			}
			if err := <-ended; err != want || h.subscriptions.Load() != 0 {
				t.Errorf("closed %t: %v", closes, err)
			}
			cancel()
		}
	})
}

// TestPaceOfPublisher: a batch that fails is sent again with growing pauses, until the timeout. What the server
// refuses is dropped, and so is all that waits if the server does not know hints.
func TestPaceOfPublisher(t *testing.T) {
	const ok = codes.OK
	for _, tt := range []struct {
		name          string
		answers       []codes.Code
		batches       []int
		failures      []int
		after         []time.Duration
		sent, dropped uint64
	}{
		{"sent", []codes.Code{ok}, []int{1, 2}, []int{0}, []time.Duration{hintPace}, 3, 0},
		{"fails three times", []codes.Code{codes.Unavailable, codes.Unavailable, codes.Unavailable, ok}, []int{1, 1, 1, 1, 2}, []int{1, 2, 3, 0}, []time.Duration{0, 0, 0, hintPace}, 3, 0},
		{"refused", []codes.Code{codes.InvalidArgument, ok}, []int{1, 2}, []int{0}, []time.Duration{hintPace}, 2, 1},
		{"not known", []codes.Code{codes.Unimplemented, ok}, []int{1}, nil, nil, 0, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			var answers []hintAnswer
			for _, c := range tt.answers {
				answers = append(answers, hintAnswer{code: c})
			}
			h, s := newHintServer(t, answers...)
			s.first = func() { h.add([]Hint{{"t", "2"}, {"t", "3"}, {"t", "2"}}) }
			h.add([]Hint{{"t", "1"}})
			<-time.After(hintRest - 1)
			synctest.Wait()
			if !slices.Equal(s.sizes(), tt.batches) || h.sent.Load() != tt.sent || h.dropped.Load() != tt.dropped {
				t.Errorf("%s: batches of %v, %d sent, %d dropped", tt.name, s.sizes(), h.sent.Load(), h.dropped.Load())
			}
			checkPauses(t, s.began(), tt.after, tt.failures)
			h.add([]Hint{{"t", "4"}}) // at the end of the rest, if there is one
			synctest.Wait()
			if rests := tt.dropped == 3; rests != (len(s.sizes()) == len(tt.batches)) {
				t.Errorf("%s: sent %v", tt.name, s.sizes())
			}
			<-time.After(1)
			synctest.Wait()
			if len(s.sizes()) != len(tt.batches)+1 {
				t.Errorf("%s: sent %v", tt.name, s.sizes())
			}
			dropped := h.dropped.Load()
			h.seal()
			if h.add([]Hint{{"t", "5"}}); h.dropped.Load() != dropped+1 {
				t.Errorf("%s: a hint after the end is not dropped", tt.name)
			}
			h.servers.end()
			h.publisher.Wait()
		})
	}
	synctest.Test(t, func(t *testing.T) { // until the timeout
		h, s := newHintServer(t, hintAnswer{code: codes.Unavailable})
		h.add([]Hint{{"t", "1"}})
		<-time.After(h.servers.timeout + time.Second)
		synctest.Wait()
		times := s.began()
		if last := times[len(times)-1].Sub(times[0]); h.dropped.Load() != 1 || h.sent.Load() != 0 || last > h.servers.timeout || last < h.servers.timeout-2*time.Second {
			t.Errorf("dropped %d, the last try after %v", h.dropped.Load(), last)
		}
		h.servers.end()
		h.publisher.Wait()
	})
}

// TestPublisherStarts: a publisher starts with a hint, and at its end sends what waits.
func TestPublisherStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := newHintServer(t, hintAnswer{})
		if h.add([]Hint{{"", "no topic"}}); h.running || h.dropped.Load() != 1 {
			t.Errorf("it runs without a hint: %t", h.running)
		}
		h.running = true
		h.add([]Hint{{"t", "1"}})
		<-h.queue.Ready // a publisher took it, and was stopped
		h.servers.end()
		if h.publish(); h.sent.Load() != 1 {
			t.Errorf("%d hints sent", h.sent.Load())
		}
	})
}

// TestFlushOfHints: the end of a client sends what waits, once, and counts what it cannot send.
func TestFlushOfHints(t *testing.T) {
	for _, tt := range []struct {
		code          codes.Code
		taken         int // hints of a batch that was under way
		waits         int
		sent, dropped uint64
		batches       string
	}{
		{codes.OK, 0, 0, 0, 0, "[]"},
		{codes.OK, 0, 2, 2, 0, "[2]"},
		{codes.OK, 3, 2, 5, 0, "[3 2]"},
		{codes.OK, 0, 1001, 1001, 0, "[1000 1]"},
		{codes.Unavailable, 3, 2, 0, 5, "[3]"},
		{codes.Unavailable, 0, 2, 0, 2, "[2]"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, s := newHintServer(t, hintAnswer{code: tt.code})
			h.running = true // so that add starts no publisher
			add := func(from, n int) {
				for i := range n {
					h.add([]Hint{{"t", fmt.Sprint(from + i)}})
				}
			}
			add(0, tt.taken)
			batch := h.take()
			add(10_000, tt.waits)
			h.flush(batch)
			if fmt.Sprint(s.sizes()) != tt.batches || h.sent.Load() != tt.sent || h.dropped.Load() != tt.dropped || len(h.drain()) != 0 {
				t.Errorf("%+v: sent %v, %d; dropped %d", tt, s.sizes(), h.sent.Load(), h.dropped.Load())
			}
		})
	}
}
