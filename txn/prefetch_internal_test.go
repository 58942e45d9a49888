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

// The client prefetches a column that transactions asked for in at least half of the rows, from the
// third row on, as far as its value and its name fit. From time to time it halves what it has counted.
func TestPatternBeginRow(t *testing.T) {
	col := func(qualifier string) Column { return Column{Family: "f", Qualifier: qualifier} }
	sized := func(cost int) Column { return col(string(make([]byte, (cost-40)/2-len("f:")))) } // store.FilterCost
	exactly := sized(maxPrefetchFilter / 3)
	for _, tt := range []struct {
		name         string
		before       int // rows
		columns      []laterColumn
		budget       int
		want         []Column
		rows         int
		columnsAfter []laterColumn // nil: as before
	}{
		{name: "too few rows", before: 2, columns: []laterColumn{{col("a"), 2, 1}}, budget: 10, rows: 3},
		{name: "enough rows", before: 3, columns: []laterColumn{{col("a"), 2, 1}}, budget: 10, want: []Column{col("a")}, rows: 4},
		{name: "half of the rows", before: 4, columns: []laterColumn{{col("a"), 2, 1}, {col("b"), 1, 1}}, budget: 10, want: []Column{col("a")}, rows: 5},
		{name: "fewer than half", before: 5, columns: []laterColumn{{col("a"), 2, 1}}, budget: 10, rows: 6},
		{name: "values", before: 3, columns: []laterColumn{{col("a"), 3, 6}, {col("b"), 3, 5}, {col("c"), 3, 4}}, budget: 10, want: []Column{col("a"), col("c")}, rows: 4},
		{name: "the longest name", before: 3, columns: []laterColumn{{exactly, 3, 1}, {col("b"), 3, 1}}, budget: 10, want: []Column{exactly}, rows: 4},
		{name: "a longer name", before: 3, columns: []laterColumn{{sized(maxPrefetchFilter/3 + 2), 3, 1}, {col("b"), 3, 1}}, budget: 10, want: []Column{col("b")}, rows: 4},
		{name: "before the window ends", before: patternWindow - 2, columns: []laterColumn{{col("a"), 1, 9}}, rows: patternWindow - 1},
		{name: "at its end", before: patternWindow - 1, columns: []laterColumn{{col("gone"), 1, 9}, {col("a"), 200, 100}, {col("b"), 7, 3}, {col("c"), 3, 4}, {col("d"), 2, 0}},
			budget: 1000, want: []Column{col("a")}, rows: patternWindow / 2, columnsAfter: []laterColumn{{col("a"), 100, 75}, {col("b"), 3, 3}, {col("c"), 1, 3}, {col("d"), 1, 0}}},
	} {
		if tt.columnsAfter == nil {
			tt.columnsAfter = slices.Clone(tt.columns)
		}
		p := &pattern{rows: tt.before, columns: tt.columns}
		if got := p.beginRow(tt.budget); !slices.Equal(got, tt.want) || p.rows != tt.rows || !slices.Equal(p.columns, tt.columnsAfter) {
			t.Errorf("%s: prefetches %q, then %d rows, %v; want %q, %d rows, %v", tt.name, got, p.rows, p.columns, tt.want, tt.rows, tt.columnsAfter)
		}
	}
}

// A column counts once for each call, with its largest value. A known size is a column's own.
func TestPatternCount(t *testing.T) {
	col := func(i int) Column { return Column{Family: "f", Qualifier: fmt.Sprint(i)} }
	p := &pattern{}
	var want []laterColumn
	for i := range maxPatternColumns + 1 {
		p.count(col(i), 10)
		if i < maxPatternColumns {
			want = append(want, laterColumn{col(i), 1, 10})
		}
	}
	p.count(col(1), 5)
	p.count(col(2), 20)
	p.noteSize(col(3), 30)
	p.noteSize(col(4), 5)
	p.noteSize(col(maxPatternColumns), 40)
	want[1].count, want[2].count, want[2].bytes, want[3].bytes = 2, 2, 20, 30
	if !slices.Equal(p.columns, want) {
		t.Errorf("counted %v, want %v", p.columns, want)
	}
}

// A full client drops a pattern that is used little, and keeps those that are used more. It drops no
// other one.
func TestPatternsEvict(t *testing.T) {
	key := func(i int) patternKey { return patternKey{"t", "page", Column{Family: "f", Qualifier: fmt.Sprint(i)}} }
	var p patterns
	for i := range maxPatterns {
		if n := p.findOrAdd(key(i)); n.rows != 1 || len(p.all) != i+1 || p.find(key(i)) != n || p.findOrAdd(key(i)) != n {
			t.Fatalf("pattern %d: %d rows, and there are %d patterns", i, n.rows, len(p.all))
		} else if i%2 == 0 {
			n.rows = 2
		}
	}
	// Of eight that it looks at, all are in use once in 256 times.
	for i := range 64 {
		p.findOrAdd(key(maxPatterns + i))
		if len(p.all) != maxPatterns {
			t.Fatalf("there are %d patterns, want %d", len(p.all), maxPatterns)
		}
	}
	used := 0
	for i := 0; i < maxPatterns; i += 2 {
		if p.find(key(i)) != nil {
			used++
		}
	}
	if used < maxPatterns/2-16 {
		t.Errorf("of %d patterns in use, %d are left", maxPatterns/2, used)
	}
	if p.forget(key(maxPatterns)); p.find(key(maxPatterns)) != nil {
		t.Error("a forgotten pattern is there")
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
