package bench

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

// hold is how long no request may begin before answers are released. Requests that do
// not wait for an answer have begun by then, unless the process was stopped for that
// long.
const hold = 10 * time.Millisecond

// A trail is what a recorder counted for one transaction.
type trail struct {
	steps    map[string]int
	requests int
	// critical is the number of sequential requests before the caller had the
	// answer: the longest chain in which each began after another had ended.
	critical    int
	criticalSet map[string]int // the steps that were sent before the caller had the answer
	sent        int            // bytes of the messages
	received    int
}

func (t trail) equal(o trail) bool {
	return t.requests == o.requests && t.critical == o.critical && maps.Equal(t.steps, o.steps)
}

// A recorder counts every request of a connection. It holds answers back until all
// requests under way have theirs and no other request has begun for a while. Then it
// releases them together. So requests run concurrently if they can, however long each
// one takes, and the number of releases is the number of round trips.
type recorder struct {
	mu       sync.Mutex
	trail    trail
	depth    int           // how often answers were released
	open     int           // requests whose answers were not released
	waiting  int           // of those, requests without an answer
	began    int           // requests so far
	released chan struct{} // closed when answers are released
}

// reset begins a new trail.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trail, r.depth = trail{steps: map[string]int{}}, 0
	if r.released == nil {
		r.released = make(chan struct{})
	}
}

// answered notes that the caller has the answer.
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

// begin counts a request, and returns a function that notes its end.
func (r *recorder) begin(method string, request any) (end func(ctx context.Context, answer any)) {
	message, _ := request.(proto.Message)
	step := string(txntest.Classify(method, message).Step)
	if path.Base(path.Dir(method)) == "percolator.tso.v1.Oracle" {
		step = string(txntest.StepOracle)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open++
	r.waiting++
	r.began++
	r.trail.requests++
	r.trail.steps[step]++
	r.trail.sent += proto.Size(message)
	released := r.released
	var once sync.Once
	return func(ctx context.Context, answer any) {
		if message, ok := answer.(proto.Message); ok {
			r.mu.Lock()
			r.trail.received += proto.Size(message)
			r.mu.Unlock()
		}
		once.Do(func() {
			r.mu.Lock()
			r.waiting--
			if r.waiting == 0 {
				time.AfterFunc(hold, r.releaser(r.began))
			}
			r.mu.Unlock()
			select {
			case <-released:
			case <-ctx.Done(): // the caller does not wait any more
			}
		})
	}
}

// releaser returns a function that releases answers if no request has begun since.
func (r *recorder) releaser(began int) func() {
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.began != began || r.waiting > 0 || r.open == 0 {
			return
		}
		close(r.released)
		r.released = make(chan struct{})
		r.open = 0
		r.depth++
	}
}

func (r *recorder) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			end := r.begin(method, req)
			err := invoke(ctx, method, req, reply, cc, opts...)
			end(ctx, reply)
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

// A recordedStream is a stream with one request under way at a time: a streamed answer,
// or the open stream to a served oracle. A request ends with its first answer.
type recordedStream struct {
	grpc.ClientStream
	recorder *recorder
	method   string

	mu  sync.Mutex
	end func(ctx context.Context, answer any)
}

func (s *recordedStream) SendMsg(m any) error {
	s.mu.Lock()
	s.end = s.recorder.begin(s.method, m)
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (s *recordedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.mu.Lock()
	end := s.end
	s.mu.Unlock()
	if end == nil {
		return err // the stream ended before a request
	}
	if err != nil {
		end(s.Context(), nil)
		return err
	}
	end(s.Context(), m)
	return nil
}
