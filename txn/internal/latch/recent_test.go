package latch

import (
	"fmt"
	"testing"

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
}
