package watch

import (
	"context"
	"path"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/percolator-bigtable/percolator/tso/pause"
)

// A Meter counts the requests of the connections that it is a stats.Handler of, and the
// bytes of their answers. It also keeps the sizes of tables that Bigtable states.
type Meter struct {
	mu    sync.Mutex
	used  Usage
	sizes map[string]int64 // by table name

	// With limits: what one request or byte takes of a second, and when those before are paid.
	each, paid struct{ request, bytes float64 }
	began      time.Time
}

// DialOptions are for the connections whose requests the meter counts.
func (m *Meter) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStatsHandler(m),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if err := m.wait(ctx); err != nil {
				return err
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := m.wait(ctx); err != nil {
				return nil, err
			}
			return open(ctx, desc, cc, method, opts...)
		}),
	}
}

// Limit makes requests of a [Patient] context wait until all requests together, of other
// contexts too, are within so many requests and bytes a second.
func (m *Meter) Limit(requests, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began = time.Now()
	m.each.request, m.each.bytes = 1/float64(requests), 1/float64(bytes)
}

type patientKey struct{}

// Patient returns a context whose requests wait for the limits of a meter.
func Patient(ctx context.Context) context.Context { return context.WithValue(ctx, patientKey{}, true) }

// wait waits until the limits allow a request, and pays for it.
func (m *Meter) wait(ctx context.Context) error {
	if ctx.Value(patientKey{}) == nil {
		return nil
	}
	for {
		m.mu.Lock()
		left := max(m.paid.request, m.paid.bytes) - time.Since(m.began).Seconds()
		if left <= 0 {
			m.pay(1, 0)
			m.mu.Unlock()
			return nil
		}
		m.mu.Unlock()
		if err := pause.For(ctx, time.Duration(left*float64(time.Second))+time.Millisecond); err != nil {
			return err
		}
	}
}

// pay pays for requests and bytes from now on.
func (m *Meter) pay(requests, bytes int) {
	now := time.Since(m.began).Seconds()
	m.paid.request = max(m.paid.request, now) + float64(requests)*m.each.request
	m.paid.bytes = max(m.paid.bytes, now) + float64(bytes)*m.each.bytes
}

// A Usage is what requests cost.
type Usage struct {
	Requests, Bytes int64
}

// Minus is the difference to an earlier usage.
func (u Usage) Minus(o Usage) Usage { return Usage{u.Requests - o.Requests, u.Bytes - o.Bytes} }

// Used is what was used so far.
func (m *Meter) Used() Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// Size is the size of a table in bytes, where Bigtable has stated it.
func (m *Meter) Size(table string) (bytes int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	bytes, ok = m.sizes[table]
	return bytes, ok
}

type sampledKey struct{}

// TagRPC implements stats.Handler.
func (m *Meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, sampledKey{}, new(string))
}

// HandleRPC implements stats.Handler.
func (m *Meter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	table, _ := ctx.Value(sampledKey{}).(*string)
	switch s := s.(type) {
	case *stats.Begin:
		m.used.Requests++
		if ctx.Value(patientKey{}) == nil {
			m.pay(1, 0)
		}
	case *stats.OutPayload:
		if r, ok := s.Payload.(*bigtablepb.SampleRowKeysRequest); ok && table != nil {
			*table = path.Base(r.TableName)
		}
	case *stats.InPayload:
		m.used.Bytes += int64(s.WireLength)
		m.pay(0, s.WireLength)
		if r, ok := s.Payload.(*bigtablepb.SampleRowKeysResponse); ok && table != nil {
			if m.sizes == nil {
				m.sizes = map[string]int64{}
			}
			m.sizes[*table] = r.OffsetBytes
		}
	}
}

// TagConn implements stats.Handler.
func (m *Meter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (m *Meter) HandleConn(context.Context, stats.ConnStats) {}
