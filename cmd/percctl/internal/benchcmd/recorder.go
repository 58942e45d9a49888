package benchcmd

import (
	"context"
	"maps"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// hold is how long a recorder keeps each answer. Requests that begin meanwhile
// did not wait for it, so that what follows what is exact as long as nobody is
// stopped for that long.
const hold = 15 * time.Millisecond

// A trail is what a recorder saw of one piece of work.
type trail struct {
	steps    map[string]int
	requests int
	// critical is how many requests followed each other before the caller had his
	// answer: the longest chain in which each began after another had ended.
	critical    int
	criticalSet map[string]int // the steps that were sent before the caller had his answer
	sent        int            // bytes of the messages
	received    int
}

func (t trail) equal(o trail) bool {
	return t.requests == o.requests && t.critical == o.critical && maps.Equal(t.steps, o.steps)
}

// A recorder sits at a connection and notes every request.
type recorder struct {
	mu    sync.Mutex
	trail trail
	depth int // of the longest chain that has ended
	open  int // requests under way
}

// reset begins a trail.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trail, r.depth = trail{steps: map[string]int{}}, 0
}

// answered notes that the caller has his answer.
func (r *recorder) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trail.critical, r.trail.criticalSet = r.depth, maps.Clone(r.trail.steps)
}

// idle reports whether no request is under way.
func (r *recorder) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open == 0
}

func (r *recorder) take() trail {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trail
}

// begin notes a request, and returns what notes its end.
func (r *recorder) begin(method string, request any) (end func(answer any)) {
	message, _ := request.(proto.Message)
	step := string(txntest.Classify(method, message).Step)
	if path.Base(path.Dir(method)) == "percolator.tso.v1.Oracle" {
		step = string(txntest.StepOracle)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	r.trail.requests++
	r.trail.steps[step]++
	r.trail.sent += proto.Size(message)
	depth := r.depth + 1
	var once sync.Once
	return func(answer any) {
		once.Do(func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.open--
			r.depth = max(r.depth, depth)
		})
		if message, ok := answer.(proto.Message); ok {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.trail.received += proto.Size(message)
		}
	}
}

func (r *recorder) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			end := r.begin(method, req)
			err := invoke(ctx, method, req, reply, cc, opts...)
			_ = pause(ctx, hold)
			end(reply)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, err
			}
			return &recordedStream{ClientStream: s, recorder: r, method: method}, nil
		}),
	}
}

// A recordedStream is a stream with one request under way at a time: a streamed
// answer, or the stream to a served oracle, which stays open. A request counts as
// ended with its first answer.
type recordedStream struct {
	grpc.ClientStream
	recorder *recorder
	method   string

	mu   sync.Mutex
	end  func(answer any)
	held bool
}

func (s *recordedStream) SendMsg(m any) error {
	s.mu.Lock()
	s.end, s.held = s.recorder.begin(s.method, m), false
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.mu.Lock()
	end, held := s.end, s.held
	s.held = true
	s.mu.Unlock()
	if end == nil {
		return err // it ended before a request
	}
	if !held {
		_ = pause(s.Context(), hold)
	}
	if err != nil {
		end(nil)
		return err
	}
	end(m)
	return nil
}
