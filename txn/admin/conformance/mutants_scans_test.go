package conformance_test

import (
	"bytes"
	"context"
	"slices"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// scanMutants break one assumption about filters and scans each.
var scanMutants = map[string]func() []front.Front{
	"column-range-exact": faulty(onFilter(func(f *btpb.RowFilter) {
		if r := f.GetColumnRangeFilter(); r.GetEndQualifierOpen() != nil {
			r.EndQualifier = &btpb.ColumnRange_EndQualifierClosed{EndQualifierClosed: r.GetEndQualifierOpen()}
		}
	})),
	"qualifier-empty": faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error { return refuse(len(m.ColumnQualifier) == 0) })),
	"value-range": faulty(onFilter(func(f *btpb.RowFilter) {
		if f.GetValueRangeFilter() != nil {
			f.Filter = &btpb.RowFilter_PassAllFilter{PassAllFilter: true}
		}
	})),
	"latest-n": faulty(onFilter(func(f *btpb.RowFilter) {
		if f.GetCellsPerColumnLimitFilter() != 0 {
			f.Filter = &btpb.RowFilter_PassAllFilter{PassAllFilter: true}
		}
	})),
	"chain-order": faulty(onFilter(func(f *btpb.RowFilter) {
		slices.SortStableFunc(f.GetChain().GetFilters(), func(a, b *btpb.RowFilter) int {
			return int(b.GetCellsPerColumnLimitFilter()) - int(a.GetCellsPerColumnLimitFilter())
		})
	})),
	"cells-per-row": faulty(onFilter(func(f *btpb.RowFilter) {
		for _, branch := range f.GetInterleave().GetFilters() {
			for _, part := range branch.GetChain().GetFilters() {
				if n := part.GetCellsPerRowLimitFilter(); n > 0 {
					part.Filter = &btpb.RowFilter_CellsPerRowOffsetFilter{CellsPerRowOffsetFilter: n}
				}
			}
		}
	})),
	"interleave-union": faulty(onFilter(func(f *btpb.RowFilter) {
		if i := f.GetInterleave(); len(i.GetFilters()) == 3 {
			i.Filters = i.Filters[:2]
		}
	})),
	"filter-18k": faulty(front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.CheckAndMutateRowRequest); ok && proto.Size(r.PredicateFilter) > 10<<10 {
			return nil, refuse(true)
		}
		return next(ctx)
	}}),
	"row-keys-any-bytes": faulty(onMutate(func(r *btpb.MutateRowRequest) error { return refuse(bytes.Contains(r.RowKey, []byte{0})) })),
	"rows-in-order": before(func() front.Front {
		type state struct {
			n    int
			held proto.Message
		}
		return front.Front{Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			if !ok || !scans(r, "rows-in-order") {
				return send(answer)
			}
			s, _ := c.Note.(state)
			s.n++
			defer func() { c.Note = s }()
			switch s.n {
			case 45:
				s.held = proto.Clone(answer)
				return nil
			case 46:
				if err := send(answer); err != nil {
					return err
				}
				return send(s.held)
			}
			return send(answer)
		}}
	}),
	"rows-reversed": faulty(onScan("rows-reversed", func(r *btpb.ReadRowsRequest) { r.Reversed = false })),
	"rows-limited":  faulty(onScan("rows-limited", func(r *btpb.ReadRowsRequest) { r.RowsLimit = 9 })),
	"pages-complete": faulty(loseLast(func(r *btpb.ReadRowsRequest) bool {
		return scans(r, "pages-complete") && r.RowsLimit == 7
	})),
	"row-range-bounds": faulty(onScan("row-range-bounds", func(r *btpb.ReadRowsRequest) {
		for _, k := range r.Rows.GetRowRanges() {
			k.EndKey = &btpb.RowRange_EndKeyClosed{EndKeyClosed: k.GetEndKeyOpen()}
		}
	})),
	"row-list": faulty(onScan("row-list", func(r *btpb.ReadRowsRequest) { r.Rows.RowKeys = r.Rows.RowKeys[1:] })),
	"scan-resumed": faulty(onScan("scan-resumed", func(r *btpb.ReadRowsRequest) {
		// Only scans that continue begin after a key.
		for _, k := range r.Rows.GetRowRanges() {
			if start := k.GetStartKeyOpen(); start != nil {
				k.StartKey = &btpb.RowRange_StartKeyClosed{StartKeyClosed: start}
			}
		}
	})),
	"last-scanned-row-key": faulty(front.Front{Answer: func(_ context.Context, _ *front.Call, answer proto.Message, send send) error {
		if a, ok := answer.(*btpb.ReadRowsResponse); ok && a.LastScannedRowKey != nil {
			a.LastScannedRowKey = []byte("last-scanned-row-key/k\xff")
		}
		return send(answer)
	}}),
	"sampled-keys": faulty(front.Front{Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
		if _, ok := answer.(*btpb.SampleRowKeysResponse); ok && c.Note == nil {
			c.Note = true
			if err := send(&btpb.SampleRowKeysResponse{RowKey: []byte("\xff\xff")}); err != nil {
				return err
			}
		}
		return send(answer)
	}}),
}
