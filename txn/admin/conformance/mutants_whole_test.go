package conformance_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// rowMutants break one assumption about concurrent requests to one row each.
var rowMutants = map[string]func() []front.Front{
	"linearizable": before(func() front.Front {
		var same counter
		var mu sync.Mutex
		first := map[string]proto.Message{}
		return front.Front{
			Request: func(_ context.Context, c *front.Call) error {
				if r, ok := c.Request.(*btpb.ReadRowsRequest); ok && len(r.Rows.GetRowKeys()) == 1 {
					c.Note = same.next(r)
				}
				return nil
			},
			Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
				n, _ := c.Note.(int)
				if n == 0 {
					return send(answer)
				}
				mu.Lock()
				defer mu.Unlock()
				key := c.Request.(*btpb.ReadRowsRequest).String()
				if first[key] == nil {
					first[key] = proto.Clone(answer)
				}
				if n%20 == 0 {
					answer = first[key]
				}
				return send(answer)
			},
		}
	}),
	"mutations-not-lost": before(func() front.Front {
		var others crowd
		return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			r, ok := c.Request.(*btpb.MutateRowRequest)
			if !ok {
				return next(ctx)
			}
			crowded, leave := others.enter(r.RowKey)
			defer leave()
			if crowded {
				return &btpb.MutateRowResponse{}, nil
			}
			return next(ctx)
		}}
	}),
	"row-mutation-whole": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		r, ok := c.Request.(*btpb.MutateRowRequest)
		if !ok || len(r.Mutations) < 30 || len(r.Mutations) > 100 {
			return next(ctx)
		}
		half := len(r.Mutations) / 2
		if _, err := c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: r.Mutations[:half]}); err != nil {
			return nil, err
		}
		<-time.After(time.Millisecond)
		r.Mutations = r.Mutations[half:]
		return next(ctx)
	}}),
	"read-interleave-whole": before(func() front.Front { return tear(startsWith[*btpb.RowFilter_PassAllFilter]) }),
	"read-chain-whole": before(func() front.Front {
		return tear(func(f *btpb.RowFilter) bool {
			all := f.GetChain().GetFilters()
			return len(all) > 0 && all[len(all)-1].GetInterleave() != nil
		})
	}),
	"read-plain-whole": before(func() front.Front { return tear(func(f *btpb.RowFilter) bool { return f == nil }) }),
	"scan-fresh": before(func() front.Front {
		var newest atomic.Pointer[[]byte]
		f := onMutate(func(r *btpb.MutateRowRequest) error {
			newest.Store(&r.RowKey)
			return nil
		})
		f.Answer = func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			r, isRead := c.Request.(*btpb.ReadRowsRequest)
			a, _ := answer.(*btpb.ReadRowsResponse)
			if isRead && scans(r, "scan-fresh") && len(a.Chunks) > 0 && newest.Load() != nil && bytes.Equal(a.Chunks[0].RowKey, *newest.Load()) {
				return nil
			}
			return send(answer)
		}
		return f
	}),
	"fresh-after-each-write": before(func() front.Front {
		return staleReads(func(r proto.Message) [][]byte {
			if m, ok := r.(*btpb.CheckAndMutateRowRequest); ok && bytes.HasPrefix(m.RowKey, []byte("fresh-after-each-write/")) {
				return [][]byte{m.RowKey}
			}
			return nil
		})
	}),
	"late-requests": before(func() front.Front {
		var mu sync.Mutex
		held := map[string]*btpb.MutateRowRequest{}
		return front.Front{
			Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
				r, ok := c.Request.(*btpb.MutateRowRequest)
				if until, has := ctx.Deadline(); !ok || !has || time.Until(until) > 100*time.Millisecond {
					return next(ctx)
				}
				mu.Lock()
				held[string(r.RowKey)] = r
				mu.Unlock()
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			},
			// They take effect after a read.
			End: func(ctx context.Context, c *front.Call, _ send) error {
				if r, ok := c.Request.(*btpb.ReadRowsRequest); ok {
					mu.Lock()
					defer mu.Unlock()
					for _, key := range r.Rows.GetRowKeys() {
						if m := held[string(key)]; m != nil {
							delete(held, string(key))
							if _, err := c.Server.MutateRow(ctx, m); err != nil {
								return err
							}
						}
					}
				}
				return nil
			},
		}
	}),
}
