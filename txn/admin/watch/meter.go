package watch

import (
	"context"
	"path"
	"sync"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/stats"
)

// A Meter counts the requests of the connections that it is a stats.Handler of, and the
// bytes of their answers. It also keeps the sizes of tables that Bigtable states.
type Meter struct {
	mu    sync.Mutex
	used  Usage
	sizes map[string]int64 // by table name
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
	case *stats.OutPayload:
		if r, ok := s.Payload.(*bigtablepb.SampleRowKeysRequest); ok && table != nil {
			*table = path.Base(r.TableName)
		}
	case *stats.InPayload:
		m.used.Bytes += int64(s.WireLength)
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
