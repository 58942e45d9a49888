package txn

import (
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A read cache is bounded too.
func TestReadCacheIsBounded(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	r := new(reads)
	r.init(c, "", true)
	for i := range 3 * maxCachedRows {
		r.beginRead(Cell{Table: "t", Row: fmt.Sprint(i), Family: "f", Qualifier: "q"})
		if len(r.rows) > maxCachedRows {
			t.Fatalf("%d rows", len(r.rows))
		}
	}
	if c.prefetchBytes = -1; new(reads).init(c, "", true) {
		t.Error("a cache without a budget")
	}
}

// A transaction that asks for any number of columns of a row remembered each, and
// compared each with all; a client kept names of any length.
func TestAskedColumnsAreBounded(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	r := new(reads)
	r.init(c, "", true)
	for i := range 10_000 {
		cell := Cell{Table: "t", Row: "r", Family: "f", Qualifier: fmt.Sprint(i)}
		r.beginRead(cell)
		r.endRead(cell, 1)
	}
	if n := len(r.first.laterColumns); n > maxAskedColumns {
		t.Errorf("%d columns of a row are remembered", n)
	}
	long := strings.Repeat("x", store.MaxKnownColumnName)
	for i := range 10 {
		cell := Cell{Table: "t", Row: fmt.Sprint("row", i), Family: "f", Qualifier: "short"}
		for _, q := range []string{"short", long, "next"} {
			cell.Qualifier = q
			r.beginRead(cell)
			r.endRead(cell, 1)
		}
		cell = Cell{Table: "t", Row: fmt.Sprint("other", i), Family: "f", Qualifier: long}
		r.beginRead(cell)
		cell.Qualifier = "short"
		r.endRead(cell, 1)
	}
	for key, p := range c.patterns.all {
		if len(key.first.Qualifier) > store.MaxKnownColumnName/2 {
			t.Errorf("a pattern of a column with a name of %d bytes", len(key.first.Qualifier))
		}
		for _, f := range p.columns {
			if len(f.column.Qualifier) > store.MaxKnownColumnName/2 {
				t.Errorf("a name of %d bytes is kept", len(f.column.Qualifier))
			}
		}
	}
	if got := r.beginRead(Cell{Table: "t", Row: "last", Family: "f", Qualifier: "short"}); len(got) != 1 {
		t.Errorf("read along: %v", got)
	}
}

// A transaction that reads one cell pays for learning with no allocation.
func TestReadOfOneCellAllocatesNothing(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	var own reads
	cell := Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	if n := testing.AllocsPerRun(100, func() {
		own = reads{}
		r := &own
		r.init(c, "page", true)
		if _, _, known := r.cached(cell); known || r.beginRead(cell) != nil {
			t.Error("something is known")
		}
		r.endRead(cell, 10)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
