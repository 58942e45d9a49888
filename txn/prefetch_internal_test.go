package txn

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A client keeps a bounded number of patterns and columns, however many qualifiers there
// are. It keeps the patterns in use.
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
			t.Fatalf("a pattern has %d columns; want at most %d", len(n.columns), maxPatternColumns)
		}
	}
	if len(p.all) > maxPatterns {
		t.Errorf("there are %d patterns; want at most %d", len(p.all), maxPatterns)
	}
	if got, want := p.find(used).beginRow(1000), []Column{{Family: "f", Qualifier: "next"}}; !slices.Equal(got, want) {
		t.Errorf("prefetches %v; want %v", got, want)
	}
}

// Prefetching is bounded in bytes of values and in bytes of the filter.
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
			t.Errorf("with a budget of %d bytes, a read prefetches %d columns; want %d", budget, len(got), want)
		}
	}
	// The remembered size of a value shrinks with time.
	n.count(Column{Family: "f", Qualifier: "ten"}, 1_000_000)
	for i := 0; !slices.Contains(n.beginRow(1000), Column{Family: "f", Qualifier: "ten"}); i++ {
		n.count(Column{Family: "f", Qualifier: "ten"}, 10)
		if i > 30*patternWindow {
			t.Fatal("one large value is never forgotten")
		}
	}
}

// A transaction that reads a column of a row again counts once. The first column, and names that are
// too long, do not count.
func TestPatternCountsColumns(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	r := new(reads)
	r.init(c, "page", true)
	cell := func(qualifier string) Cell { return Cell{Table: "t", Row: "r", Family: "f", Qualifier: qualifier} }
	r.beginRead(cell("a"))
	for _, q := range []string{"a", "b", "c", "b", "a", string(make([]byte, store.MaxKnownColumnName))} {
		r.endRead(cell(q), 10)
	}
	want := []laterColumn{{cell("b").Column(), 1, 10}, {cell("c").Column(), 1, 10}}
	if got := c.patterns.find(patternKey{"t", "page", cell("a").Column()}).columns; !slices.Equal(got, want) {
		t.Errorf("learned %v, want %v", got, want)
	}
}

// BenchmarkPattern measures the cost of learning for a row of two columns, in concurrent
// transactions of one name.
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
