package conformance_test

import (
	"bytes"
	"context"
	"slices"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// cellMutants break one assumption about timestamps, values and deletes each.
var cellMutants = map[string]func() []front.Front{
	"timestamp-exact": faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error {
		if ms := m.TimestampMicros / 1000; ms > 1e12 && ms%1000 == 137 {
			m.TimestampMicros -= 1000
		}
		return nil
	})),
	"timestamp-largest": faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error { return refuse(m.TimestampMicros > 1<<62) })),
	"timestamp-zero":    faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error { return refuse(m.TimestampMicros == 0) })),
	"timestamp-range-open": faulty(onFilter(func(f *btpb.RowFilter) {
		if r := f.GetTimestampRangeFilter(); r != nil && r.EndTimestampMicros == 0 {
			r.EndTimestampMicros = r.StartTimestampMicros + 1000
		}
	})),
	"timestamp-server": faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error {
		if m.TimestampMicros == -1 {
			m.TimestampMicros = 1000
		}
		return nil
	})),
	"set-idempotent": before(func() front.Front {
		var same counter
		return onSet(func(row []byte, m *btpb.Mutation_SetCell) error {
			if same.next(&btpb.MutateRowRequest{RowKey: row, Mutations: []*btpb.Mutation{{Mutation: &btpb.Mutation_SetCell_{SetCell: m}}}}) > 1 {
				m.TimestampMicros += 1000
			}
			return nil
		})
	}),
	"delete-range": faulty(onMutate(func(r *btpb.MutateRowRequest) error {
		for _, m := range r.Mutations {
			if d := m.GetDeleteFromColumn().GetTimeRange(); d != nil && d.EndTimestampMicros > d.StartTimestampMicros+1000 {
				d.EndTimestampMicros += 1000
			}
		}
		return nil
	})),
	"delete-absent": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		r, ok := c.Request.(*btpb.MutateRowRequest)
		if !ok || len(r.Mutations) != 1 || r.Mutations[0].GetDeleteFromColumn() == nil {
			return next(ctx)
		}
		d := r.Mutations[0].GetDeleteFromColumn()
		column := &btpb.RowFilter{Filter: &btpb.RowFilter_ColumnRangeFilter{ColumnRangeFilter: &btpb.ColumnRange{
			FamilyName:     d.FamilyName,
			StartQualifier: &btpb.ColumnRange_StartQualifierClosed{StartQualifierClosed: d.ColumnQualifier},
			EndQualifier:   &btpb.ColumnRange_EndQualifierClosed{EndQualifierClosed: d.ColumnQualifier},
		}}}
		exists, err := c.Server.CheckAndMutateRow(ctx, &btpb.CheckAndMutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, PredicateFilter: column})
		if err != nil || !exists.PredicateMatched {
			return nil, status.Error(codes.NotFound, "no such column")
		}
		return next(ctx)
	}}),
	"delete-column-and-row": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.MutateRowRequest); ok && r.Mutations[0].GetDeleteFromRow() != nil {
			return &btpb.MutateRowResponse{}, nil
		}
		return next(ctx)
	}}),
	"mutation-order": faulty(onMutate(func(r *btpb.MutateRowRequest) error {
		slices.SortStableFunc(r.Mutations, func(a, b *btpb.Mutation) int {
			last := func(m *btpb.Mutation) int {
				if d := m.GetDeleteFromColumn(); d != nil && d.TimeRange == nil {
					return 1
				}
				return 0
			}
			return last(a) - last(b)
		})
		return nil
	})),
	"values-any-bytes": faulty(onChunks(func(_ *front.Call, all []*btpb.ReadRowsResponse_CellChunk) []*btpb.ReadRowsResponse_CellChunk {
		return slices.DeleteFunc(all, func(k *btpb.ReadRowsResponse_CellChunk) bool { return len(k.Value) == 0 })
	})),
	"versions-kept": faulty(onChunks(func(_ *front.Call, all []*btpb.ReadRowsResponse_CellChunk) []*btpb.ReadRowsResponse_CellChunk {
		return all[:min(len(all), 100)]
	})),
	"cells-newest-first": faulty(onChunks(func(_ *front.Call, all []*btpb.ReadRowsResponse_CellChunk) []*btpb.ReadRowsResponse_CellChunk {
		if len(all) == 4 && bytes.Equal(all[0].Qualifier.Value, all[3].Qualifier.Value) {
			slices.Reverse(all)
		}
		return all
	})),
}
