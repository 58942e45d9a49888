package txn

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// What a client learns is bounded, whatever qualifiers there are, and what is used
// stays.
func TestPatternsAreBounded(t *testing.T) {
	var p patterns
	used := patternKey{"t", "page", Column{Family: "f", Qualifier: "used"}}
	for i := range 5 * maxPatterns {
		p.findOrAdd(patternKey{"t", "page", Column{Family: "f", Qualifier: fmt.Sprint(i)}})
		n := p.findOrAdd(used)
		n.beginRow(1000)
		n.count(Column{Family: "f", Qualifier: "next"}, 10)
		n.count(Column{Family: "f", Qualifier: fmt.Sprint(i)}, 10)
		if len(n.columns) > maxPatternColumns {
			t.Fatalf("%d columns", len(n.columns))
		}
	}
	if len(p.all) > maxPatterns {
		t.Errorf("%d patterns", len(p.all))
	}
	if got, want := p.find(used).beginRow(1000), []Column{{Family: "f", Qualifier: "next"}}; !slices.Equal(got, want) {
		t.Errorf("read along: %v, want %v", got, want)
	}
}

// What may be brought along is bounded in bytes and in what it takes of the
// filter.
func TestPatternBudgets(t *testing.T) {
	n := &pattern{}
	long := string(make([]byte, maxPrefetchFilter/4))
	for range 20 {
		n.beginRow(0)
		n.count(Column{Family: "f", Qualifier: "ten"}, 10)
		n.count(Column{Family: "f", Qualifier: "twenty"}, 20)
		n.count(Column{Family: "f", Qualifier: long}, 1)
	}
	for budget, want := range map[int]int{0: 0, 10: 1, 19: 1, 20: 1, 29: 1, 30: 2, 1000: 2} {
		if got := n.beginRow(budget); len(got) != want {
			t.Errorf("budget %d: %d columns, want %d", budget, len(got), want)
		}
	}
	// Sizes are forgotten by and by.
	n.count(Column{Family: "f", Qualifier: "ten"}, 1_000_000)
	for i := 0; !slices.Contains(n.beginRow(1000), Column{Family: "f", Qualifier: "ten"}); i++ {
		n.count(Column{Family: "f", Qualifier: "ten"}, 10)
		if i > 30*patternWindow {
			t.Fatal("one large value is never forgotten")
		}
	}
}

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

// BenchmarkPattern is what learning costs a row of two columns, by many
// transactions of one kind at once.
func BenchmarkPattern(b *testing.B) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	var wg sync.WaitGroup
	b.ReportAllocs()
	for b.Loop() {
		for range 8 {
			wg.Go(func() {
				r := new(reads)
				r.init(c, "page", true)
				for i := range 100 {
					row := Cell{Table: "t", Row: keys[i], Family: "f", Qualifier: "a"}
					r.beginRead(row)
					row.Qualifier = "b"
					r.endRead(row, 10)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*800), "ns/row")
}

var keys = func() (k [100]string) {
	for i := range k {
		k[i] = fmt.Sprint(i)
	}
	return k
}()

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
