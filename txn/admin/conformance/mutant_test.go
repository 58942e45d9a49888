package conformance_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// Faults of servers, for tests of the tests: each makes a server break one assumption.

type (
	next = func(context.Context) (proto.Message, error)
	send = func(proto.Message) error
)

// onMutate changes requests of MutateRow. An error refuses them.
func onMutate(f func(*btpb.MutateRowRequest) error) front.Front {
	return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.MutateRowRequest); ok {
			if err := f(r); err != nil {
				return nil, err
			}
		}
		return next(ctx)
	}}
}

// onSet changes each cell that MutateRow sets.
func onSet(f func(row []byte, m *btpb.Mutation_SetCell) error) front.Front {
	return onMutate(func(r *btpb.MutateRowRequest) error {
		for _, m := range r.Mutations {
			if s := m.GetSetCell(); s != nil {
				if err := f(r.RowKey, s); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// onPredicate changes predicates.
func onPredicate(f func(*btpb.RowFilter) *btpb.RowFilter) front.Front {
	return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(*btpb.CheckAndMutateRowRequest); ok {
			r.PredicateFilter = f(r.PredicateFilter)
		}
		return next(ctx)
	}}
}

// onRead changes requests of ReadRows.
func onRead(f func(*btpb.ReadRowsRequest) error) front.Front {
	return front.Front{Request: func(_ context.Context, c *front.Call) error {
		if r, ok := c.Request.(*btpb.ReadRowsRequest); ok {
			return f(r)
		}
		return nil
	}}
}

// onFilter changes filters of reads.
func onFilter(f func(*btpb.RowFilter)) front.Front {
	return onRead(func(r *btpb.ReadRowsRequest) error {
		if r.Filter != nil {
			f(r.Filter)
		}
		return nil
	})
}

// onChunks changes the cells of a row that a read returns.
func onChunks(f func(c *front.Call, all []*btpb.ReadRowsResponse_CellChunk) []*btpb.ReadRowsResponse_CellChunk) front.Front {
	return front.Front{Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
		a, ok := answer.(*btpb.ReadRowsResponse)
		if !ok || len(a.Chunks) == 0 {
			return send(answer)
		}
		commit := a.Chunks[len(a.Chunks)-1].RowStatus
		a.Chunks[len(a.Chunks)-1].RowStatus = nil
		if a.Chunks = f(c, a.Chunks); len(a.Chunks) > 0 {
			a.Chunks[len(a.Chunks)-1].RowStatus = commit
		}
		return send(a)
	}}
}

// counter counts requests that are the same.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (k *counter) next(m proto.Message) int {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.n == nil {
		k.n = map[string]int{}
	}
	k.n[string(b)]++
	return k.n[string(b)]
}

// tear leaves a cell out of every tenth answer to the same read.
func tear(matches func(*btpb.RowFilter) bool) front.Front {
	var same counter
	f := onChunks(func(c *front.Call, all []*btpb.ReadRowsResponse_CellChunk) []*btpb.ReadRowsResponse_CellChunk {
		if c.Note == true {
			return all[:len(all)-1]
		}
		return all
	})
	f.Request = func(_ context.Context, c *front.Call) error {
		if r, ok := c.Request.(*btpb.ReadRowsRequest); ok {
			c.Note = len(r.Rows.GetRowKeys()) == 1 && matches(r.Filter) && same.next(r)%10 == 0
		}
		return nil
	}
	return f
}

func startsWith[T any](f *btpb.RowFilter) bool {
	all := f.GetInterleave().GetFilters()
	if len(all) == 0 {
		return false
	}
	_, ok := all[0].Filter.(T)
	return ok
}

func refuse(violated bool) error {
	if violated {
		return status.Error(codes.InvalidArgument, "refused by the fault")
	}
	return nil
}

// crowd says how many calls for a row are under way.
type crowd struct {
	mu     sync.Mutex
	rows   map[string]int
	joined chan struct{}
}

// enter returns whether another call for the row is under way. The first call waits a moment
// for a second one.
func (c *crowd) enter(row []byte) (crowded bool, leave func()) {
	c.mu.Lock()
	if c.rows == nil {
		c.rows, c.joined = map[string]int{}, make(chan struct{})
	}
	c.rows[string(row)]++
	crowded = c.rows[string(row)] > 1
	joined := c.joined
	if crowded {
		close(c.joined)
		c.joined = make(chan struct{})
	}
	c.mu.Unlock()
	if !crowded {
		select {
		case <-joined:
		case <-time.After(time.Millisecond):
		}
	}
	return crowded, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rows[string(row)]--
	}
}

// without is a strict server that lacks a rule.
func without(rules ...string) func() []front.Front {
	return func() []front.Front { return []front.Front{strict.Front(strict.Config{Without: rules})} }
}

// before puts a fault before a strict server.
func before(fault func() front.Front) func() []front.Front {
	return func() []front.Front { return []front.Front{fault(), strict.Front(strict.Config{})} }
}

// faulty is before for faults without state.
func faulty(f front.Front) func() []front.Front { return before(func() front.Front { return f }) }

// wholeReads makes the emulator answer plain reads whole.
var wholeReads = onRead(func(r *btpb.ReadRowsRequest) error {
	none := &btpb.RowFilter{Filter: &btpb.RowFilter_BlockAllFilter{BlockAllFilter: true}}
	f := r.Filter
	if f == nil {
		f = &btpb.RowFilter{Filter: &btpb.RowFilter_PassAllFilter{PassAllFilter: true}}
	}
	r.Filter = &btpb.RowFilter{Filter: &btpb.RowFilter_Interleave_{Interleave: &btpb.RowFilter_Interleave{Filters: []*btpb.RowFilter{f, none}}}}
	return nil
})

// mutants are servers that break one assumption each.
var mutants = map[string]func() []front.Front{
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
			if !ok || len(r.TrueMutations)+len(r.FalseMutations) == 0 {
				return next(ctx)
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
		if _, err := c.Server.MutateRow(ctx, &btpb.MutateRowRequest{TableName: r.TableName, RowKey: r.RowKey, Mutations: []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}}}); err != nil {
			return nil, err
		}
		return next(ctx)
	}}),
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
			if isRead && len(r.Rows.GetRowRanges()) > 0 && len(a.Chunks) > 0 && newest.Load() != nil && bytes.Equal(a.Chunks[0].RowKey, *newest.Load()) {
				return nil
			}
			return send(answer)
		}
		return f
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
		column := &btpb.RowFilter{Filter: &btpb.RowFilter_ColumnRangeFilter{ColumnRangeFilter: &btpb.ColumnRange{FamilyName: d.FamilyName, StartQualifier: &btpb.ColumnRange_StartQualifierClosed{StartQualifierClosed: d.ColumnQualifier}, EndQualifier: &btpb.ColumnRange_EndQualifierClosed{EndQualifierClosed: d.ColumnQualifier}}}}
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
			if !ok || len(r.Rows.GetRowRanges()) == 0 || r.Reversed || r.RowsLimit > 0 {
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
	"rows-reversed": faulty(onRead(func(r *btpb.ReadRowsRequest) error { r.Reversed = false; return nil })),
	"rows-limited": faulty(onRead(func(r *btpb.ReadRowsRequest) error {
		if r.RowsLimit == 10 {
			r.RowsLimit = 9
		}
		return nil
	})),
	"row-range-bounds": faulty(onRead(func(r *btpb.ReadRowsRequest) error {
		for _, k := range r.Rows.GetRowRanges() {
			if end := k.GetEndKeyOpen(); end != nil {
				k.EndKey = &btpb.RowRange_EndKeyClosed{EndKeyClosed: end}
			}
		}
		return nil
	})),
	"row-list": faulty(onRead(func(r *btpb.ReadRowsRequest) error {
		if keys := r.Rows.GetRowKeys(); len(keys) > 50 && len(keys) < 100 {
			r.Rows.RowKeys = keys[1:]
		}
		return nil
	})),
	"sampled-keys": faulty(front.Front{Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
		if _, ok := answer.(*btpb.SampleRowKeysResponse); ok && c.Note == nil {
			c.Note = true
			if err := send(&btpb.SampleRowKeysResponse{RowKey: []byte("\xff\xff")}); err != nil {
				return err
			}
		}
		return send(answer)
	}}),

	"bulk-applied": faulty(front.Front{Request: func(_ context.Context, c *front.Call) error {
		if r, ok := c.Request.(*btpb.MutateRowsRequest); ok && len(r.Entries) > 150 {
			r.Entries[150].Mutations = []*btpb.Mutation{{Mutation: &btpb.Mutation_DeleteFromRow_{DeleteFromRow: &btpb.Mutation_DeleteFromRow{}}}}
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
	"value-2m":       faulty(onSet(func(_ []byte, m *btpb.Mutation_SetCell) error { return refuse(len(m.Value) > 1<<20) })),

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
}

// TestMutants: for each assumption there is a server that breaks it, and exactly its test
// fails there.
func TestMutants(t *testing.T) {
	for id := range mutants {
		if !slices.ContainsFunc(conformance.All(), func(a conformance.Assumption) bool { return a.ID == id }) {
			t.Errorf("there is no assumption %s", id)
		}
	}
	for i, a := range conformance.All() {
		if testing.Short() && i%3 != time.Now().YearDay()%3 {
			continue // another third of the faults each day
		}
		t.Run(a.ID, func(t *testing.T) {
			t.Parallel()
			fronts, ok := mutants[a.ID]
			if !ok {
				t.Fatal("no server breaks it")
			}
			bt, admin := connect(t, front.Options(append(fronts(), wholeReads)...)...)
			r, err := conformance.Run(t.Context(), bt, admin, quick)
			if err != nil {
				t.Fatal(err)
			}
			if got := append(slices.Clone(r.Broken), r.Limits...); !slices.Equal(got, []string{a.ID}) {
				for _, x := range r.Results {
					if x.State == conformance.Broken || x.State == conformance.Limit {
						t.Errorf("%s is %s: %s", x.ID, x.State, x.Detail)
					}
				}
				t.Errorf("broken: %v, limits: %v; want only %s", r.Broken, r.Limits, a.ID)
			}
			want := conformance.Unsafe
			if a.Class == conformance.Optional {
				want = conformance.SafeWithLimits
			}
			if r.Verdict != want {
				t.Errorf("the verdict is %s, want %s", r.Verdict, want)
			}
			if a.ID != conformance.SingleRow && len(r.Untested) > 0 {
				t.Errorf("untested: %v", r.Untested)
			}
		})
	}
}

// TestStrict: the server of the mutants keeps everything without a fault.
func TestStrict(t *testing.T) {
	bt, admin := connect(t, front.Options(strict.Front(strict.Config{}), wholeReads)...)
	r, err := conformance.Run(t.Context(), bt, admin, quick)
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != conformance.Safe || len(r.Kept) != len(conformance.All()) {
		t.Errorf("%s: broken %v, limits %v, untested %v", r.Verdict, r.Broken, r.Limits, r.Untested)
	}
}
