package demo

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A crashPoint is a moment of the commit at which a client is killed. The
// commit of the primary decides a transaction, so what is left behind before
// it has to be rolled back, and after it, rolled forward.
type crashPoint string

const (
	// beforeCommit: every cell is locked, the primary is not committed.
	beforeCommit crashPoint = "before the commit of the primary"
	// afterCommit: the primary is committed, the secondaries are still locked.
	afterCommit crashPoint = "after the commit of the primary, before its secondaries"
)

// step is the first request that a client killed at the point does not send.
func (p crashPoint) step() txntest.Step {
	if p == beforeCommit {
		return txntest.StepCommit
	}
	return txntest.StepSecondaries
}

// A crasher sits between a client and Bigtable. Once armed, it waits for the
// request that the crash point names and holds it back, and with it every
// request after it: as far as Bigtable can tell, the client is dead. Then it
// calls stopped, and the coordinator kills the process for good.
type crasher struct {
	stopped func(crashPoint, time.Time)

	mu    sync.Mutex
	armed crashPoint
	dead  bool
}

func (c *crasher) arm(p crashPoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = p
}

func (c *crasher) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := c.pass(ctx, method, req); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return &crashStream{s, c, method}, err
		}),
	}
}

// crashStream sees the request of a call whose answer is a stream.
type crashStream struct {
	grpc.ClientStream
	crasher *crasher
	method  string
}

func (s *crashStream) SendMsg(m any) error {
	if err := s.crasher.pass(s.Context(), s.method, m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}

// pass returns nil when a request may be sent, and else keeps its caller until
// the context ends.
func (c *crasher) pass(ctx context.Context, method string, req any) error {
	c.mu.Lock()
	if c.armed != "" && !c.dead {
		if msg, ok := req.(proto.Message); ok && txntest.Classify(method, msg).Step == c.armed.step() {
			c.dead = true
			c.stopped(c.armed, time.Now())
		}
	}
	dead := c.dead
	c.mu.Unlock()
	if !dead {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}
