package latch

import (
	"fmt"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A commit of one cell is no conflict for another cell in the same slot.
func TestRecentNamesItsCell(t *testing.T) {
	r := NewRecent(0)
	slot := func(c format.Cell) uint64 { return hashCell(&c, r.seed) % uint64(len(r.slots)) }
	rowsOf := func(c format.Cell) []*store.RowWrites {
		return []*store.RowWrites{{Row: c.Row, Writes: []*store.Write{{Cell: c}}}}
	}
	one := format.Cell{Table: "t", Row: "one", Family: "f", Qualifier: "q"}
	other := one
	for i := 0; other == one || slot(other) != slot(one); i++ {
		other.Row = fmt.Sprintf("other%d", i)
	}
	r.Committed(rowsOf(one), 20)
	if c := r.Conflict(rowsOf(one), 10); c == nil || c.Cell != one || c.ConflictTS != 20 {
		t.Errorf("the committed cell: %+v, want its conflict", c)
	}
	if c := r.Conflict(rowsOf(one), 30); c != nil {
		t.Errorf("a transaction that began later: %+v, want no conflict", c)
	}
	if c := r.Conflict(rowsOf(other), 10); c != nil {
		t.Errorf("another cell in the same slot: %+v, want no conflict", c)
	}
	r.Committed(rowsOf(one), 15) // which another goroutine was late to say
	conflict := func(reason format.ConflictReason) error {
		return &format.ConflictError{Cell: one, StartTS: 10, ConflictTS: 30, Reason: reason}
	}
	r.Conflicted(conflict(format.ConflictLock))
	if at, above := r.Conflict(rowsOf(one), 20), r.Conflict(rowsOf(one), 21); at == nil || at.ConflictTS != 20 || above != nil {
		t.Errorf("at the commit and above it: %+v, %+v", at, above)
	}
	off := NewRecent(-1)
	off.Committed(rowsOf(one), 20)
	off.Conflicted(conflict(format.ConflictWrite))
	if c := off.Conflict(rowsOf(one), 10); c != nil || len(off.slots) > 0 {
		t.Errorf("without latches: %+v", c)
	}
}

// A large transaction replaces at most an eighth of what the client remembers.
func TestRecentIsNotReplacedByOneCommit(t *testing.T) {
	r := NewRecent(0)
	const allowed = recentSlots / 8
	slots := map[uint64]bool{}
	row := &store.RowWrites{Row: "r"}
	for i := 0; len(row.Writes) <= allowed; i++ {
		c := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: fmt.Sprint(i)}
		if n := hashCell(&c, r.seed) % recentSlots; !slots[n] { // each cell in a slot of its own
			slots[n] = true
			row.Writes = append(row.Writes, &store.Write{Cell: c})
		}
	}
	r.Committed([]*store.RowWrites{row}, 20)
	for i, w := range row.Writes {
		known := r.Conflict([]*store.RowWrites{{Row: "r", Writes: []*store.Write{w}}}, 10) != nil
		if known != (i < allowed) {
			t.Errorf("cell %d is remembered: %v", i, known)
		}
	}
}

// A client that conflicted with a record above the oracle commits after the record was removed.
func TestRecentForgetsRecordsAboveTheOracle(t *testing.T) {
	cell := format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	rows := []*store.RowWrites{{Row: cell.Row, Writes: []*store.Write{{Cell: cell}}}}
	const start = 1e15
	for _, test := range []struct {
		above time.Duration
		known bool
	}{{time.Second, true}, {time.Hour, true}, {time.Hour + time.Microsecond, false}} {
		r := NewRecent(0)
		at := start + tso.Timestamp(test.above.Microseconds())
		r.Conflicted(fmt.Errorf("prewrite: %w", &format.ConflictError{Cell: cell, StartTS: start, ConflictTS: at, Reason: format.ConflictWrite}))
		if got := r.Conflict(rows, start+1) != nil; got != test.known {
			t.Errorf("a commit %v above the transaction: remembered %v, want %v", test.above, got, test.known)
		}
	}
}
