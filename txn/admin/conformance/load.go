package conformance

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// load are assumptions about requests that a service refuses although they are right.
var load = []Assumption{
	{
		ID: "throttling", Group: "Refusals", Class: Optional,
		Title:  "A service that has too much to do refuses requests with UNAVAILABLE, or with RESOURCE_EXHAUSTED and RetryInfo.",
		Used:   "Bigtable's client repeats such requests, and no others (`txn/internal/store/rpc.go`)",
		Source: "assumed: Bigtable's client waits as RetryInfo says; https://github.com/googleapis/java-bigtable/pull/2026",
		Breaks: "Transactions are safe, but fail while the service has too much to do.",
		Advice: "Limit how many requests your clients send at once (Config.Parallelism), or add nodes.",
		cost:   cost{loops: true, bytes: 4 << 20}, needsDial: true,
		test: testThrottled,
	},
	{
		ID: "permission-code", Group: "Refusals", Class: Optional,
		Title:  "Requests of an account without the permission fail with PERMISSION_DENIED, and change nothing.",
		Used:   "such a code is final; percctl names the role that is missing (`txn/internal/store/rpc.go`)",
		Source: "https://cloud.google.com/bigtable/docs/access-control; the code was seen: https://github.com/googleapis/java-bigtable/issues/32",
		Breaks: "Clients without a permission try again until their context ends, instead of failing at once.",
		Advice: avoided,
		needs:  SingleRow,
		cost:   simple, needsDenied: true,
		test: testDenied,
	},
}

// attempts looks at how requests fail, also those that Bigtable's client repeats.
type attempts struct {
	t  *trial
	mu sync.Mutex
	// wrong is the first failure that the client would not repeat.
	wrong error
}

func (a *attempts) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := a.t.spend(0); err != nil {
				return err
			}
			return a.see(ctx, invoke(ctx, method, req, reply, conn, opts...))
		}),
		a.t.eachStream(func(s grpc.ClientStream) grpc.ClientStream { return &seenStream{ClientStream: s, a: a} }),
	}
}

type seenStream struct {
	grpc.ClientStream
	a *attempts
}

func (s *seenStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if _, ok := status.FromError(err); !ok {
		return err // the end of the stream
	}
	return s.a.see(s.Context(), err)
}

func (a *attempts) see(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	switch s := status.Convert(err); s.Code() {
	case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		return err
	case codes.ResourceExhausted:
		for _, d := range s.Details() {
			if retry, ok := d.(*errdetails.RetryInfo); ok && retry.RetryDelay.AsDuration() > 0 {
				return err
			}
		}
		err = fmt.Errorf("%w, without RetryInfo", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wrong == nil {
		a.wrong = err
	}
	return err
}

// testThrottled sends four times as many requests at once as other tests.
func testThrottled(ctx context.Context, t *trial) error {
	a := &attempts{t: t}
	end, err := t.over(ctx, a.options()...)
	if err != nil {
		return err
	}
	defer end()
	t.begin()
	_ = t.workers(ctx, 4*t.cfg.Concurrency, func(ctx context.Context, i int) error {
		row := t.row(fmt.Sprint("r", i))
		for n := int64(1); t.more(ctx); n++ {
			err := t.apply(ctx, row, set("a", 1+n%10, "v"))
			if err == nil {
				_, err = t.read(ctx, row, nil)
			}
			if err != nil && !unavailable(err) {
				return err
			}
		}
		return nil
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.wrong != nil {
		return brokenf("with %d requests at once, one fails with %v", 4*t.cfg.Concurrency, a.wrong)
	}
	return nil
}

// testDenied sends requests as an account that may do nothing.
func testDenied(ctx context.Context, t *trial) error {
	bt, _, end, err := t.cfg.Denied(ctx)
	if err != nil {
		return err
	}
	defer end()
	row, c := t.row("r"), cell{family1, "a", 1, "v"}
	if err := t.apply(ctx, row, set("a", 1, "v")); err != nil {
		return err
	}
	own := t.table
	t.table = bt.Open(t.name)
	_, read := t.read(ctx, row, nil)
	_, written := t.check(ctx, row, exact(family1, "a"), set("b", 1, "w"), set("b", 1, "w"))
	t.table = own
	for what, err := range map[string]error{"a read": read, "a conditional mutation": written} {
		switch code := status.Code(err); {
		case err == nil:
			return brokenf("%s of an account without permissions is accepted", what)
		case code == codes.PermissionDenied:
		case unavailable(err):
			return err
		default:
			return brokenf("%s of an account without permissions fails with %v: %v", what, code, err)
		}
	}
	return t.expect(ctx, "after a mutation without permission", row, nil, c)
}
