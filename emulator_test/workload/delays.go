package workload

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso"
)

// Delays let virtual time pass for the requests of one client: before a request reaches
// Bigtable, and before its answer returns. This decides the order in which requests are
// applied.
type Delays struct {
	// Longer: one of this many requests takes up to Longest, and the others up to 10 ms.
	Longer  int
	Longest time.Duration

	mu  sync.Mutex
	rnd *rand.Rand
	off bool
}

// NewDelays returns Delays. The seed makes its choices.
func NewDelays(seed, client uint64, longer int, longest time.Duration) *Delays {
	return &Delays{Longer: longer, Longest: longest, rnd: rand.New(rand.NewPCG(seed, client))}
}

// End ends the delays of later requests.
func (d *Delays) End() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

func (d *Delays) next() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.off:
		return 0
	case d.rnd.IntN(d.Longer) == 0:
		return time.Duration(d.rnd.Int64N(int64(d.Longest)))
	}
	return time.Duration(d.rnd.Int64N(int64(10 * time.Millisecond)))
}

func (d *Delays) wait(ctx context.Context) error {
	t := time.NewTimer(d.next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// DialOptions returns the interceptors.
func (d *Delays) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := d.wait(ctx); err != nil {
				return err
			}
			if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
				return err
			}
			return d.wait(ctx)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := d.wait(ctx); err != nil {
				return nil, err
			}
			return streamer(ctx, desc, cc, method, opts...)
		}),
	}
}

// Oracle returns an oracle that answers as o does, after a delay.
func (d *Delays) Oracle(o tso.Oracle) tso.Oracle { return distant{o, d} }

type distant struct {
	tso.Oracle
	*Delays
}

func (o distant) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	if err := o.wait(ctx); err != nil {
		return 0, err
	}
	ts, err := o.Oracle.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	return ts, o.wait(ctx)
}
