package soak

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const (
	// share is how many of a client's requests get a fault.
	share = 0.03
	// longest is how late a request may be. Garbage collection, which allows 30 s, does not
	// run here.
	longest = 2 * time.Second
	// longestPause is longer than a lock of a client that stands still lives.
	longestPause = 3 * lockTTL / 2
)

// The faults of single requests. Errors never say whether the request was applied.
var (
	anyRequest = []txntest.Action{txntest.DropRequest, txntest.Hold}
	writes     = append(anyRequest[:2:2], txntest.DropResponse, txntest.Duplicate, txntest.Echo, txntest.Delay)
	bulkWrites = append(writes[:len(writes):len(writes)], txntest.Partial)
	reads      = append(anyRequest[:2:2], txntest.CutStream)
)

// faults chooses what happens to the requests of one client.
type faults struct {
	requests *txntest.Faults
	report   func(kind string)

	mu     sync.Mutex
	rnd    *rand.Rand
	dead   bool
	paused time.Time // until then
}

func newFaults(rnd *rand.Rand, report func(kind string)) *faults {
	f := &faults{rnd: rnd, report: report}
	f.requests = txntest.ChooseFaults(f.choose)
	return f
}

func (f *faults) choose(c txntest.Call) (txntest.Action, time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return txntest.DropRequest, 0, true
	}
	if left := time.Until(f.paused); left > 0 {
		return txntest.Hold, left, true
	}
	if f.rnd.Float64() >= share {
		return 0, 0, false
	}
	all := writes
	switch c.Request.(type) {
	case *btpb.ReadRowsRequest, *btpb.SampleRowKeysRequest:
		all = reads
	case *btpb.MutateRowsRequest:
		all = bulkWrites
	}
	action := all[f.rnd.IntN(len(all))]
	f.report(action.String())
	return action, time.Duration(f.rnd.Int64N(int64(longest)) + 1), true
}

// kill drops every later request, as if the process had ended.
func (f *faults) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

// pause holds every request, as if the process stood still.
func (f *faults) pause(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = time.Now().Add(d)
}

// heal ends the faults of a client that lives, and waits for late requests.
func (f *faults) heal() { f.requests.Wait() }

// A meter counts requests, and the bytes of their messages.
type meter struct{ n, bytes atomic.Int64 }

func (m *meter) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			m.n.Add(1)
			m.size(req)
			defer m.size(reply)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			m.n.Add(1)
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &meteredStream{s, m}, err
		}),
	}
}

func (m *meter) size(msg any) {
	if p, ok := msg.(proto.Message); ok {
		m.bytes.Add(int64(proto.Size(p)))
	}
}

type meteredStream struct {
	grpc.ClientStream
	meter *meter
}

func (s *meteredStream) SendMsg(msg any) error {
	s.meter.size(msg)
	return s.ClientStream.SendMsg(msg)
}

func (s *meteredStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if err == nil {
		s.meter.size(msg)
	}
	return err
}
