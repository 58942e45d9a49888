package conformance_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A dice says for one of 300 requests that the fault happens, and counts these.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
	n   atomic.Int64
}

func (d *dice) roll() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	hit := d.rnd.IntN(300) == 0
	if hit {
		d.n.Add(1)
	}
	return hit
}

// A rareFault happens to one of 300 requests. id is the assumption whose test has to find it.
type rareFault struct {
	name, id string
	fault    func(*dice) front.Front
}

var rareFaults = []rareFault{
	{"an entry of a bulk mutation is not applied", "bulk-applied", func(d *dice) front.Front {
		return loseEntries(func(all []*btpb.MutateRowsRequest_Entry) (lost map[int]bool) {
			lost = map[int]bool{}
			for i := range all {
				lost[i] = d.roll()
			}
			return lost
		})
	}},
	{"the last entry of a bulk mutation is not applied", "bulk-applied", func(d *dice) front.Front {
		return loseEntries(func(all []*btpb.MutateRowsRequest_Entry) map[int]bool {
			return map[int]bool{len(all) - 1: d.roll()}
		})
	}},
	{"a mutation is not applied", "fresh-after-each-write", func(d *dice) front.Front {
		return onUnary(func(r *btpb.MutateRowRequest) proto.Message {
			if d.roll() {
				return &btpb.MutateRowResponse{}
			}
			return nil
		})
	}},
	{"a conditional mutation is not applied", "fresh-after-each-write", func(d *dice) front.Front {
		return onUnary(func(r *btpb.CheckAndMutateRowRequest) proto.Message {
			if d.roll() {
				return &btpb.CheckAndMutateRowResponse{PredicateMatched: true}
			}
			return nil
		})
	}},
	{"a conditional mutation sees an older row", "fresh-after-each-write", func(d *dice) front.Front {
		return onUnary(func(r *btpb.CheckAndMutateRowRequest) proto.Message {
			if d.roll() { // as if what it looks for had not been written yet
				r.PredicateFilter = &btpb.RowFilter{Filter: &btpb.RowFilter_BlockAllFilter{BlockAllFilter: true}}
			}
			return nil
		})
	}},
	{"a read after a conditional mutation is stale", "fresh-after-each-write", func(d *dice) front.Front {
		return staleReads(func(r proto.Message) [][]byte {
			if m, ok := r.(*btpb.CheckAndMutateRowRequest); ok && d.roll() {
				return [][]byte{m.RowKey}
			}
			return nil
		})
	}},
	{"a cache before reads forgets nothing after a bulk mutation", "fresh-after-each-write", func(d *dice) front.Front {
		return staleReads(func(r proto.Message) (keys [][]byte) {
			if m, ok := r.(*btpb.MutateRowsRequest); ok && d.roll() {
				for _, e := range m.Entries {
					keys = append(keys, e.RowKey)
				}
			}
			return keys
		})
	}},
	{"a cache before reads keeps what it read beside a write", "fresh-after-each-write", racingCache},
	{"a page loses its last row at the limit", "pages-complete", func(d *dice) front.Front {
		return loseLast(func(r *btpb.ReadRowsRequest) bool { return r.RowsLimit > 1 && d.roll() })
	}},
	{"a scan of a range loses its last row", "pages-complete", func(d *dice) front.Front {
		return loseLast(func(r *btpb.ReadRowsRequest) bool { return len(r.Rows.GetRowRanges()) > 0 && d.roll() })
	}},
}

// onUnary answers a request of type M instead of the server, or lets it pass, changed.
func onUnary[M proto.Message](answer func(M) proto.Message) front.Front {
	return front.Front{Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
		if r, ok := c.Request.(M); ok {
			if a := answer(r); a != nil {
				return a, nil
			}
		}
		return next(ctx)
	}}
}

// loseEntries acknowledges entries that it does not apply.
func loseEntries(choose func([]*btpb.MutateRowsRequest_Entry) (lost map[int]bool)) front.Front {
	return front.Front{
		Request: func(_ context.Context, c *front.Call) error {
			r, ok := c.Request.(*btpb.MutateRowsRequest)
			if !ok || len(r.Entries) < 2 {
				return nil
			}
			all, lost := r.Entries, choose(r.Entries)
			index := []int64{}
			r.Entries = nil
			for i, e := range all {
				if !lost[i] {
					r.Entries, index = append(r.Entries, e), append(index, int64(i))
				}
			}
			if len(r.Entries) == 0 {
				r.Entries, index = all, nil
			}
			c.Note = index
			return nil
		},
		Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			a, ok := answer.(*btpb.MutateRowsResponse)
			index, _ := c.Note.([]int64)
			if !ok || index == nil {
				return send(answer)
			}
			applied := map[int64]*statuspb.Status{}
			for _, e := range a.Entries {
				applied[index[e.Index]] = e.Status
			}
			all := &btpb.MutateRowsResponse{}
			for i := range slices.Max(index) + 2 {
				s := applied[i]
				if s == nil {
					s = &statuspb.Status{}
				}
				all.Entries = append(all.Entries, &btpb.MutateRowsResponse_Entry{Index: i, Status: s})
			}
			return send(all)
		},
	}
}

// staleReads gives the next read of the rows that choose returns the answer that the same request
// had before.
func staleReads(choose func(proto.Message) [][]byte) front.Front {
	var mu sync.Mutex
	stale, last := map[string]bool{}, map[string]proto.Message{}
	see := func(r proto.Message) {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range choose(r) {
			stale[string(key)] = true
		}
	}
	return front.Front{
		Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			answer, err := next(ctx)
			if err == nil {
				see(c.Request)
			}
			return answer, err
		},
		Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			a, isRows := answer.(*btpb.ReadRowsResponse)
			if !ok {
				see(c.Request)
			}
			if !isRows || !ok || len(a.Chunks) == 0 {
				return send(answer)
			}
			mu.Lock()
			defer mu.Unlock()
			row := string(a.Chunks[0].RowKey)
			key := r.String() + row
			if before := last[key]; before != nil && stale[row] {
				delete(stale, row)
				return send(before)
			}
			last[key] = proto.Clone(answer)
			return send(answer)
		},
	}
}

// racingCache keeps answers of reads of one row until the row changes. It forgets them before one
// of 300 changes, instead of after it, and then keeps what a read beside that change finds. The
// change waits a moment for such a read.
func racingCache(d *dice) front.Front {
	var mu sync.Mutex
	kept, early, changes := map[string]proto.Message{}, map[string]bool{}, map[string]int{}
	keysOf := func(r proto.Message) (keys []string) {
		switch r := r.(type) {
		case *btpb.MutateRowRequest:
			keys = append(keys, string(r.RowKey))
		case *btpb.CheckAndMutateRowRequest:
			keys = append(keys, string(r.RowKey))
		case *btpb.MutateRowsRequest:
			for _, e := range r.Entries {
				keys = append(keys, string(e.RowKey))
			}
		}
		return keys
	}
	beside := map[string]chan struct{}{} // by row, closed when a read is kept
	forget := func(r proto.Message, after bool) {
		mu.Lock()
		var reads []chan struct{}
		for _, key := range keysOf(r) {
			if !after {
				early[key] = d.roll()
			}
			if !after || !early[key] {
				delete(kept, key)
				changes[key]++
			}
			if !after && early[key] {
				beside[key] = make(chan struct{})
				reads = append(reads, beside[key])
			}
		}
		mu.Unlock()
		for _, read := range reads {
			select {
			case <-read:
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return front.Front{
		Unary: func(ctx context.Context, c *front.Call, next next) (proto.Message, error) {
			forget(c.Request, false)
			defer forget(c.Request, true)
			return next(ctx)
		},
		Request: func(_ context.Context, c *front.Call) error {
			forget(c.Request, false)
			if r, ok := c.Request.(*btpb.ReadRowsRequest); ok && len(r.Rows.GetRowKeys()) == 1 {
				mu.Lock()
				defer mu.Unlock()
				c.Note = changes[string(r.Rows.RowKeys[0])]
			}
			return nil
		},
		Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			forget(c.Request, true) // the answer of a bulk mutation
			r, ok := c.Request.(*btpb.ReadRowsRequest)
			if !ok || len(r.Rows.GetRowKeys()) != 1 {
				return send(answer)
			}
			mu.Lock()
			defer mu.Unlock()
			row := string(r.Rows.RowKeys[0])
			if before := kept[row]; before != nil {
				return send(before)
			}
			if c.Note == changes[row] {
				kept[row] = proto.Clone(answer)
				if read := beside[row]; read != nil {
					close(read)
					delete(beside, row)
				}
			}
			return send(answer)
		},
	}
}

// loseLast leaves out the last row of answers that have several.
func loseLast(choose func(*btpb.ReadRowsRequest) bool) front.Front {
	type state struct {
		held proto.Message
		some bool
	}
	return front.Front{
		Request: func(_ context.Context, c *front.Call) error {
			if r, ok := c.Request.(*btpb.ReadRowsRequest); ok && choose(r) {
				c.Note = &state{}
			}
			return nil
		},
		Answer: func(_ context.Context, c *front.Call, answer proto.Message, send send) error {
			s, _ := c.Note.(*state)
			if s == nil {
				return send(answer)
			}
			held := s.held
			s.held = proto.Clone(answer)
			if held == nil {
				return nil
			}
			s.some = true
			return send(held)
		},
		End: func(_ context.Context, c *front.Call, send send) error {
			if s, _ := c.Note.(*state); s != nil && s.held != nil && !s.some {
				return send(s.held)
			}
			return nil
		},
	}
}

var seed atomic.Uint64

// TestRareFaults: the default run finds faults that happen to one of 300 requests. Each run of the
// test throws other dice: -count=5 makes five runs. They take a second or two, and a slow machine has
// ten times as long as the default.
func TestRareFaults(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	from := seed.Add(1)
	for _, f := range rareFaults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			d := &dice{rnd: rand.New(rand.NewPCG(from, 0))}
			s := start(t, front.Options(f.fault(d), strict.Front(strict.Config{}))...)
			r, err := conformance.Run(t.Context(), s.bt, s.admin, conformance.Config{Only: []string{f.id}, Dial: s.dial, Duration: 30 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			last := r.Results[len(r.Results)-1]
			if !slices.Equal(r.Broken, []string{f.id}) || d.n.Load() == 0 {
				t.Errorf("%d faults, broken: %v; %s is %s: %s", d.n.Load(), r.Broken, last.ID, last.State, last.Detail)
			}
			t.Logf("%d faults, %d requests, %.1f s: %s", d.n.Load(), r.Requests, r.Seconds, last.Detail)
		})
	}
}
