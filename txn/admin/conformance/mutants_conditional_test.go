package conformance_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// conditionalMutants break one assumption about conditional mutations and increments each.
var conditionalMutants = map[string]func() []front.Front{
	conformance.SingleRow: func() []front.Front {
		return []front.Front{strict.Front(strict.Config{SeveralClusters: []string{""}})}
	},
	"conditional-branches": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.CheckAndMutateRowRequest); ok && len(r.TrueMutations) > 0 && len(r.FalseMutations) > 0 {
			r.FalseMutations = r.TrueMutations
		}
		return next(ctx)
	}}),
	"predicate-interleave": faulty(onPredicate(func(f *btpb.RowFilter) *btpb.RowFilter {
		if all := f.GetInterleave().GetFilters(); all != nil {
			return all[0]
		}
		return f
	})),
	"predicate-chain": faulty(onPredicate(func(f *btpb.RowFilter) *btpb.RowFilter {
		if all := f.GetChain().GetFilters(); all != nil {
			return all[0]
		}
		return f
	})),
	"predicate-absent-row": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.CheckAndMutateRowRequest); ok && len(r.FalseMutations) > 0 {
			exists, err := c.Server.CheckAndMutateRow(ctx, &btpb.CheckAndMutateRowRequest{TableName: r.TableName, RowKey: r.RowKey})
			if err != nil || !exists.PredicateMatched {
				return nil, status.Error(codes.NotFound, "no such row")
			}
		}
		return next(ctx)
	}}),
	"conditional-atomic": before(func() front.Front {
		var others crowd
		return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			r, ok := c.Request.(*btpb.CheckAndMutateRowRequest)
			if !ok || len(r.TrueMutations)+len(r.FalseMutations) == 0 || bytes.HasPrefix(r.RowKey, []byte("permission-code/")) {
				return next(ctx) // c.Server asks for no permissions
			}
			answer, err := c.Server.CheckAndMutateRow(ctx, &btpb.CheckAndMutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, PredicateFilter: r.PredicateFilter})
			if err != nil {
				return next(ctx)
			}
			_, leave := others.enter(r.RowKey)
			defer leave()
			changes := r.FalseMutations
			if answer.PredicateMatched {
				changes = r.TrueMutations
			}
			if len(changes) == 0 {
				return answer, nil
			}
			_, err = c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: changes})
			return answer, err
		}}
	}),
	// Half of the changes come later.
	"conditional-whole": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		r, ok := c.Request.(*btpb.CheckAndMutateRowRequest)
		if !ok || len(r.TrueMutations) < 30 {
			return next(ctx)
		}
		half := len(r.TrueMutations) / 2
		late := &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: r.TrueMutations[half:]}
		r.TrueMutations = r.TrueMutations[:half]
		answer, err := next(ctx)
		if err != nil {
			return nil, err
		}
		<-time.After(time.Millisecond)
		_, err = c.Server.MutateRow(ctx, late)
		return answer, err
	}}),
	"conditional-100000": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.CheckAndMutateRowRequest); ok && len(r.FalseMutations) > 50_000 {
			return nil, refuse(true)
		}
		return next(ctx)
	}}),
	"increment-atomic": before(func() front.Front {
		var others crowd
		var last atomic.Pointer[btpb.ReadModifyWriteRowResponse]
		return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			r, ok := c.Request.(*btpb.ReadModifyWriteRowRequest)
			if !ok {
				return next(ctx)
			}
			crowded, leave := others.enter(r.RowKey)
			defer leave()
			if before := last.Load(); crowded && before != nil && bytes.Equal(before.Row.Key, r.RowKey) {
				return before, nil
			}
			answer, err := next(ctx)
			if a, ok := answer.(*btpb.ReadModifyWriteRowResponse); ok && err == nil {
				last.Store(a)
			}
			return answer, err
		}}
	}),
	"increment-refuses-other-sizes": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		answer, err := next(ctx)
		r, ok := c.Request.(*btpb.ReadModifyWriteRowRequest)
		if !ok || err == nil || !strings.Contains(err.Error(), "64-bit") {
			return answer, err
		}
		clear := &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}}}
		if _, err := c.Server.MutateRow(ctx, clear); err != nil {
			return nil, err
		}
		return next(ctx)
	}}),
}
