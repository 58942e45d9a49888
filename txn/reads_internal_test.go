package txn

import (
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A read cache keeps a bounded number of rows.
func TestReadCacheIsBounded(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	r := new(reads)
	r.init(c, "", true)
	for i := range 3 * maxCachedRows {
		r.beginRead(Cell{Table: "t", Row: fmt.Sprint(i), Family: "f", Qualifier: "q"})
		if len(r.rows) > maxCachedRows {
			t.Fatalf("the cache has %d rows; want at most %d", len(r.rows), maxCachedRows)
		}
	}
	if c.prefetchBytes = -1; new(reads).init(c, "", true) {
		t.Error("without PrefetchBytes, reads still share a cache")
	}
}

// A transaction remembers a bounded number of columns of a row, and a client forgets long
// names. Without the bounds, each new column was compared with all earlier ones.
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
		t.Errorf("a transaction remembers %d columns of a row; want at most %d", n, maxAskedColumns)
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
			t.Errorf("there is a pattern for a first column whose name has %d bytes", len(key.first.Qualifier))
		}
		for _, f := range p.columns {
			if len(f.column.Qualifier) > store.MaxKnownColumnName/2 {
				t.Errorf("a pattern keeps a column name of %d bytes", len(f.column.Qualifier))
			}
		}
	}
	if got := r.beginRead(Cell{Table: "t", Row: "last", Family: "f", Qualifier: "short"}); len(got) != 1 {
		t.Errorf("prefetches %v; want one column", got)
	}
}

// For a transaction that reads one cell, learning allocates nothing.
func TestReadOfOneCellAllocatesNothing(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	var own reads
	cell := Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}
	if n := testing.AllocsPerRun(100, func() {
		own = reads{}
		r := &own
		r.init(c, "page", true)
		if _, _, known := r.cached(cell); known || r.beginRead(cell) != nil {
			t.Error("a new cache is not empty")
		}
		r.endRead(cell, 10)
	}); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
}
