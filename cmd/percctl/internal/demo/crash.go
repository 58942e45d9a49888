package demo

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A crashPoint is a moment of an observer's run at which a worker is killed. The
// commit of the primary, which is the acknowledgment, decides a run: what is left
// behind before it is rolled back and run again by another worker, and after it
// rolled forward.
type crashPoint string

const (
	// beforePrewrite: the observer has run, nothing is written.
	beforePrewrite crashPoint = "in an observer, before it wrote anything"
	// beforeCommit: every cell is locked, weak notifications are set, the primary
	// is not committed.
	beforeCommit crashPoint = "before the commit of the primary"
	// afterCommit: the primary is committed, the secondaries are still locked.
	afterCommit crashPoint = "after the commit of the primary, before its secondaries"
	// beforeClear: the run is committed, the notification still there.
	beforeClear crashPoint = "after the commit, before the notification was removed"
)

var crashPoints = []crashPoint{beforePrewrite, afterCommit, beforeCommit, beforeClear}

// committed reports whether the run counts.
func (p crashPoint) committed() bool { return p == afterCommit || p == beforeClear }

// meets reports whether a request is the first that a worker killed at the
// point does not send.
func (p crashPoint) meets(method string, req proto.Message) bool {
	switch call := txntest.Classify(method, req); p {
	case beforePrewrite:
		return call.Step == txntest.StepPrewrite
	case beforeCommit:
		return call.Step == txntest.StepCommit
	case afterCommit:
		return call.Step == txntest.StepSecondaries
	case beforeClear:
		return clears(req)
	}
	return false
}

// clears reports whether a request removes notifications and does nothing else.
func clears(req proto.Message) bool {
	bulk, ok := req.(*bigtablepb.MutateRowsRequest)
	if !ok {
		return false
	}
	for _, e := range bulk.Entries {
		for _, m := range e.Mutations {
			if m.GetDeleteFromColumn().GetFamilyName() != format.NotifyFamily {
				return false
			}
		}
	}
	return true
}

// A crasher sits between a worker and Bigtable. Once armed, it waits for the
// request that the crash point names and holds it back, and with it every
// request after it: as far as Bigtable can tell, the worker is dead. Then it
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
		if msg, ok := req.(proto.Message); ok && c.armed.meets(method, msg) {
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
