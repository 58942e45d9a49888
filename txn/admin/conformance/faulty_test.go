package conformance_test

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

// scans reports whether a request reads rows of the test of an assumption.
func scans(r *btpb.ReadRowsRequest, id string) bool {
	keys := r.Rows.GetRowKeys()
	for _, k := range r.Rows.GetRowRanges() {
		keys = append(keys, k.GetStartKeyClosed(), k.GetStartKeyOpen())
	}
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.HasPrefix(k, []byte(id+"/")) })
}

// onScan changes requests for rows of the test of an assumption.
func onScan(id string, f func(*btpb.ReadRowsRequest)) front.Front {
	return onRead(func(r *btpb.ReadRowsRequest) error {
		if scans(r, id) {
			f(r)
		}
		return nil
	})
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
