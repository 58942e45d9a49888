package rig

import (
	"context"
	"path"
	"sync"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/stats"
)

// rpcs counts requests to Bigtable where gRPC sends them.
type rpcs struct {
	// Requests by method.
	Requests map[string]int `json:"requests"`
	// Scans counts reads of ranges of the measured table; the next fields are what
	// they returned, in rows and bytes.
	Scans     int   `json:"scan_requests"`
	ScanRows  int   `json:"scan_rows"`
	ScanBytes int64 `json:"scan_bytes"`
}

// All returns the number of all requests.
func (r *rpcs) All() int {
	n := 0
	for _, m := range r.Requests {
		n += m
	}
	return n
}

func (r *rpcs) add(other rpcs) {
	if r.Requests == nil {
		r.Requests = map[string]int{}
	}
	for m, n := range other.Requests {
		r.Requests[m] += n
	}
	r.Scans += other.Scans
	r.ScanRows += other.ScanRows
	r.ScanBytes += other.ScanBytes
}

// rpcCounter is a stats.Handler that counts requests.
type rpcCounter struct {
	table string // scans of this table are counted separately

	mu    sync.Mutex
	count rpcs
}

// rpcKey marks the context of a request; its value is a *rpcCall.
type rpcKey struct{}

type rpcCall struct {
	method string
	scan   bool
}

func (c *rpcCounter) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, rpcKey{}, &rpcCall{method: path.Base(info.FullMethodName)})
}

func (c *rpcCounter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	call, _ := ctx.Value(rpcKey{}).(*rpcCall)
	if call == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s := s.(type) {
	case *stats.OutPayload:
		if c.count.Requests == nil {
			c.count.Requests = map[string]int{}
		}
		c.count.Requests[call.method]++
		if r, ok := s.Payload.(*btpb.ReadRowsRequest); ok && len(r.GetRows().GetRowKeys()) == 0 && path.Base(r.TableName) == c.table {
			call.scan = true
			c.count.Scans++
		}
	case *stats.InPayload:
		r, ok := s.Payload.(*btpb.ReadRowsResponse)
		if !ok || !call.scan {
			return
		}
		c.count.ScanBytes += int64(s.Length)
		for _, chunk := range r.Chunks {
			if chunk.GetCommitRow() {
				c.count.ScanRows++
			}
		}
	}
}

func (c *rpcCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *rpcCounter) HandleConn(context.Context, stats.ConnStats)                       {}

// take returns the counts and resets them.
func (c *rpcCounter) take() rpcs {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.count
	c.count = rpcs{}
	return taken
}
