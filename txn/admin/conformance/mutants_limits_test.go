package conformance_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// limitMutants break one assumption about bulk mutations, sizes, refusals and tables each.
var limitMutants = map[string]func() []front.Front{
	"bulk-applied": faulty(front.Front{Request: func(_ context.Context, c *front.Call) error {
		if r, ok := c.Request.(*btpb.MutateRowsRequest); ok && len(r.Entries) == 10 {
			r.Entries[7].Mutations = []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}}
		}
		return nil
	}}),
	"bulk-partial": faulty(front.Front{Answer: func(_ context.Context, _ *front.Call, answer proto.Message, send send) error {
		if a, ok := answer.(*btpb.MutateRowsResponse); ok {
			for _, e := range a.Entries {
				e.Status.Code = int32(codes.OK)
			}
		}
		return send(answer)
	}}),
	"bulk-100000": faulty(front.Front{Request: func(_ context.Context, c *front.Call) error {
		r, ok := c.Request.(*btpb.MutateRowsRequest)
		return refuse(ok && len(r.Entries) == 100)
	}}),
	"row-key-4k":     faulty(onMutate(func(r *btpb.MutateRowRequest) error { return refuse(len(r.RowKey) > 2<<10) })),
	"qualifier-2600": faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error { return refuse(len(m.ColumnQualifier) > 1<<10) })),
	"value-2m": faulty(onSet(func(row []byte, m *btpb.Mutation_SetCell) error {
		return refuse(len(m.Value) > 1<<20 && bytes.HasPrefix(row, []byte("value-2m/")))
	})),
	"row-8m": faulty(front.Front{Answer: func(_ context.Context, _ *front.Call, answer proto.Message, send send) error {
		if proto.Size(answer) > 5<<20 {
			return status.Error(codes.FailedPrecondition, "the row is too large")
		}
		return send(answer)
	}}),

	"failed-mutation-whole": func() []front.Front {
		code := front.Front{Unary: func(ctx context.Context, _ *front.Call, next next) (proto.Message, error) {
			answer, err := next(ctx)
			if status.Code(err) == codes.Unknown {
				err = status.Error(codes.NotFound, err.Error())
			}
			return answer, err
		}}
		return []front.Front{code, strict.Front(strict.Config{Without: []string{strict.UnknownFamily}})}
	},
	"unknown-family-code": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		answer, err := next(ctx)
		if _, ok := c.Request.(*btpb.MutateRowRequest); ok && status.Code(err) == codes.NotFound {
			err = status.Error(codes.Unknown, err.Error())
		}
		return answer, err
	}}),
	"unknown-table-code": faulty(front.Front{Request: func(ctx context.Context, c *front.Call) error {
		if r, ok := c.Request.(*btpb.ReadRowsRequest); ok {
			if _, err := c.Server.GetTable(ctx, &btapb.GetTableRequest{Name: r.TableName}); err != nil {
				return status.Error(codes.Internal, "no such table")
			}
		}
		return nil
	}}),
	"empty-condition-refused": without(strict.EmptyCondition),
	"many-changes-refused":    without(strict.ManyChanges),
	"large-filter-refused":    without(strict.FilterSize),
	"long-row-key-refused":    without(strict.RowKey),
	"long-qualifier-refused":  without(strict.Qualifier),
	// It has too much to do for every 20th request of the busiest test.
	"throttling": before(func() front.Front {
		var n atomic.Int64
		return onMutate(func(r *btpb.MutateRowRequest) error {
			if bytes.HasPrefix(r.RowKey, []byte("throttling/")) && n.Add(1)%20 == 0 {
				return status.Error(codes.ResourceExhausted, "too much to do")
			}
			return nil
		})
	}),
	"permission-code": faulty(front.Front{Unary: func(ctx context.Context, _ *front.Call, next next) (proto.Message, error) {
		answer, err := next(ctx)
		if status.Code(err) == codes.PermissionDenied {
			err = status.Error(codes.Internal, "no permission")
		}
		return answer, err
	}}),

	"family-added": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btapb.ModifyColumnFamiliesRequest); ok && r.Modifications[0].GetCreate() != nil {
			t, err := c.Server.GetTable(ctx, &btapb.GetTableRequest{Name: r.Name})
			if err == nil && len(t.ColumnFamilies) >= 2 {
				return t, nil
			}
		}
		return next(ctx)
	}}),
	"policy-reported": faulty(front.Front{Unary: func(ctx context.Context, _ *front.Call, next next) (proto.Message, error) {
		answer, err := next(ctx)
		if t, ok := answer.(*btapb.Table); ok && err == nil {
			for _, f := range t.ColumnFamilies {
				f.GcRule = nil
			}
		}
		return answer, err
	}}),
	// It uses a policy also when it has been replaced.
	"policy-empty": before(func() front.Front {
		var mu sync.Mutex
		one := map[string]bool{}
		return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			mu.Lock()
			switch r := c.Request.(type) {
			case *btapb.ModifyColumnFamiliesRequest:
				if r.Modifications[0].GetUpdate().GetGcRule().GetMaxNumVersions() == 1 {
					one[r.Name] = true
				}
			case *btpb.MutateRowRequest:
				if one[r.TableName] {
					r.Mutations = r.Mutations[len(r.Mutations)-1:]
				}
			}
			mu.Unlock()
			return next(ctx)
		}}
	}),
}

// removedCost makes reads and conditional mutations of a row take as long as each and each cell that
// was deleted from it.
func removedCost(each, removed time.Duration) front.Front {
	var mu sync.Mutex
	cells := map[string]int{}
	note := func(key []byte, all []*btpb.Mutation) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range all {
			if m.GetDeleteFromColumn() != nil {
				cells[string(key)]++
			}
		}
	}
	wait := func(key []byte) {
		mu.Lock()
		d := each + time.Duration(cells[string(key)])*removed
		mu.Unlock()
		if d > 0 {
			<-time.After(d)
		}
	}
	return front.Front{
		Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			switch r := c.Request.(type) {
			case *btpb.MutateRowRequest:
				note(r.RowKey, r.Mutations)
			case *btpb.CheckAndMutateRowRequest:
				wait(r.RowKey)
			}
			return next(ctx)
		},
		Request: func(_ context.Context, c *front.Call) error {
			if r, ok := c.Request.(*btpb.ReadRowsRequest); ok {
				for _, key := range r.Rows.GetRowKeys() {
					wait(key)
				}
			}
			return nil
		},
	}
}
