package workload

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The kinds of faults that a Chaos makes. An error never says whether the
// request was applied.
const (
	FaultDropRequest  = "drop-request"  // Unavailable, not sent
	FaultDropResponse = "drop-response" // sent and applied, then Unavailable
	FaultDuplicate    = "duplicate"     // sent twice
	FaultDelay        = "delay"         // DeadlineExceeded at once, sent later
	FaultSlow         = "slow"          // sent later, and waited for
	FaultCut          = "cut-stream"    // a streamed answer breaks off
	FaultPartial      = "partial-bulk"  // a part of a bulk mutation is not sent
)

// A Chaos sits between a client and Bigtable and does something to a share of
// the requests, chosen at random from a seed. Pass DialOptions to the client's
// connection.
type Chaos struct {
	// Share of requests that get a fault.
	Share float64
	// Longest pause of FaultDelay and FaultSlow.
	Longest time.Duration

	mu    sync.Mutex
	rnd   *rand.Rand
	fired map[string]int
	off   bool
	late  sync.WaitGroup
}

// NewChaos returns a Chaos with choices that seed makes.
func NewChaos(seed uint64, share float64, longest time.Duration) *Chaos {
	return &Chaos{Share: share, Longest: longest, rnd: rand.New(rand.NewPCG(seed, 2)), fired: map[string]int{}}
}

// Fired returns how many faults of each kind there were since the last call.
func (c *Chaos) Fired() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	fired := c.fired
	c.fired = map[string]int{}
	return fired
}

// Heal ends the faults and waits for the requests that were delayed.
func (c *Chaos) Heal() {
	c.mu.Lock()
	c.off = true
	c.mu.Unlock()
	c.late.Wait()
}

// DialOptions returns the interceptors.
func (c *Chaos) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.unary), grpc.WithChainStreamInterceptor(c.stream)}
}

// choose returns a fault of those that fit, or none.
func (c *Chaos) choose(kinds ...string) (kind string, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.off || c.rnd.Float64() >= c.Share {
		return "", 0
	}
	kind = kinds[c.rnd.IntN(len(kinds))]
	c.fired[kind]++
	if kind == FaultDelay {
		c.late.Add(1)
	}
	return kind, time.Duration(c.rnd.Int64N(int64(c.Longest)) + 1)
}

func unavailable(kind string) error {
	return status.Errorf(codes.Unavailable, "injected fault: %s", kind)
}

// sendLater sends a request whose caller was told that time is over.
func (c *Chaos) sendLater(pause time.Duration, send func(context.Context) error) error {
	go func() {
		defer c.late.Done()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if rest(ctx, pause) == nil {
			_ = send(ctx)
		}
	}()
	return status.Errorf(codes.DeadlineExceeded, "injected fault: %s", FaultDelay)
}

func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (c *Chaos) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	send := func() error { return invoke(ctx, method, req, reply, cc, opts...) }
	msg, ok := req.(proto.Message)
	if !ok {
		return send()
	}
	again := func(ctx context.Context) error {
		return invoke(ctx, method, proto.Clone(msg), proto.Clone(reply.(proto.Message)), cc)
	}
	switch kind, pause := c.choose(FaultDropRequest, FaultDropResponse, FaultDuplicate, FaultDelay, FaultSlow); kind {
	case FaultDropRequest:
		return unavailable(kind)
	case FaultDropResponse:
		if err := again(ctx); err != nil {
			return err
		}
		return unavailable(kind)
	case FaultDuplicate:
		if err := again(ctx); err != nil {
			return err
		}
	case FaultDelay:
		return c.sendLater(pause, again)
	case FaultSlow:
		if err := rest(ctx, pause); err != nil {
			return err
		}
	}
	return send()
}

func (c *Chaos) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &chaosStream{ClientStream: s, chaos: c, open: func(ctx context.Context) (grpc.ClientStream, error) {
		return streamer(ctx, desc, cc, method)
	}}, nil
}

// chaosStream is a request with a streamed answer: ReadRows, MutateRows,
// SampleRowKeys.
type chaosStream struct {
	grpc.ClientStream
	chaos *Chaos
	open  func(context.Context) (grpc.ClientStream, error)
	kind  string
	got   int
	kept  []int64 // entries of a bulk mutation that were not sent
}

func (s *chaosStream) SendMsg(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return s.ClientStream.SendMsg(m)
	}
	again := func(ctx context.Context) error { return s.again(ctx, proto.Clone(msg)) }
	kinds := []string{FaultDropRequest, FaultSlow, FaultCut}
	bulk, isBulk := m.(*btpb.MutateRowsRequest)
	if isBulk {
		kinds = []string{FaultDropRequest, FaultDropResponse, FaultDuplicate, FaultDelay, FaultSlow, FaultPartial}
	}
	var pause time.Duration
	switch s.kind, pause = s.chaos.choose(kinds...); s.kind {
	case FaultDropRequest:
		return unavailable(s.kind)
	case FaultDropResponse:
		if err := again(s.Context()); err != nil {
			return err
		}
		return unavailable(s.kind)
	case FaultDuplicate:
		if err := again(s.Context()); err != nil {
			return err
		}
	case FaultDelay:
		return s.chaos.sendLater(pause, again)
	case FaultSlow:
		if err := rest(s.Context(), pause); err != nil {
			return err
		}
	case FaultPartial:
		if len(bulk.Entries) < 2 {
			return unavailable(s.kind)
		}
		// The first ones are sent, so that indexes stay what they are.
		part := proto.Clone(bulk).(*btpb.MutateRowsRequest)
		for i := len(part.Entries) / 2; i < len(part.Entries); i++ {
			s.kept = append(s.kept, int64(i))
		}
		part.Entries = part.Entries[:len(part.Entries)/2]
		return s.ClientStream.SendMsg(part)
	}
	return s.ClientStream.SendMsg(m)
}

func (s *chaosStream) again(ctx context.Context, msg proto.Message) error {
	other, err := s.open(ctx)
	if err != nil {
		return err
	}
	if err := other.SendMsg(msg); err != nil {
		return err
	}
	if err := other.CloseSend(); err != nil {
		return err
	}
	for {
		switch err := other.RecvMsg(&emptypb.Empty{}); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (s *chaosStream) RecvMsg(m any) error {
	if s.kind == FaultCut && s.got == 1 {
		return unavailable(s.kind)
	}
	s.got++
	err := s.ClientStream.RecvMsg(m)
	if res, ok := m.(*btpb.MutateRowsResponse); ok && err == nil {
		for _, i := range s.kept {
			res.Entries = append(res.Entries, &btpb.MutateRowsResponse_Entry{Index: i, Status: status.New(codes.Unavailable, "injected fault: "+FaultPartial).Proto()})
		}
		s.kept = nil
	}
	return err
}
