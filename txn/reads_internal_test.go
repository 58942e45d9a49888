package txn

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A read cache keeps a bounded number of rows and bytes. A full one is emptied.
func TestReadCacheIsBounded(t *testing.T) {
	cell := func(i int) Cell { return Cell{Table: "t", Row: fmt.Sprint(i), Family: "f", Qualifier: "q"} }
	known := func(r *reads, i int) bool {
		_, _, known := r.cached(cell(i))
		return known
	}
	c := readSharing{counters: &store.Counters{}}
	r := new(reads)
	r.init(&c, "", false)
	for i := range maxCachedRows + 1 { // the first one is not in r.rows
		r.remember(cell(i), []byte("v"), true)
	}
	if len(r.rows) != maxCachedRows || r.bytes != maxCachedRows+1 || !known(r, 0) || !known(r, 1) || !known(r, maxCachedRows) {
		t.Errorf("a full cache has %d rows and %d bytes", len(r.rows), r.bytes)
	}
	r.remember(cell(-1), []byte("new"), true)
	if len(r.rows) != 0 || r.bytes != 3 || known(r, 0) || known(r, 1) || !known(r, -1) {
		t.Errorf("then it has %d rows beside the first one, and %d bytes", len(r.rows), r.bytes)
	}
	for _, last := range []int{0, 1} { // the value fills the cache, or leaves one byte
		r := new(reads)
		r.init(&c, "", false)
		r.remember(cell(1), make([]byte, maxCachedBytes-last), true)
		r.remember(cell(2), []byte("v"), true)
		if known(r, 1) != (last == 1) || !known(r, 2) {
			t.Errorf("with %d bytes less than the bound, the first row is known: %v; the second one: %v", last, known(r, 1), known(r, 2))
		}
	}
}

// Reads share something if the client prefetches or batches. A client with PrefetchBytes below 0
// does not prefetch.
func TestReadsShare(t *testing.T) {
	for _, tt := range []struct {
		prefetchBytes, batchReads int
		prefetch                  bool
		budget                    int
		want                      bool
	}{
		{7, 0, true, 7, true}, {1, 0, true, 1, true}, {7, 0, false, 0, false}, {-1, 0, true, 0, false}, {-1, 1, true, 0, true}, {7, 1, false, 0, true}, {7, 1, true, 7, true}, {-1, -1, true, 0, false},
	} {
		r := new(reads)
		if got := r.init(&readSharing{prefetchBytes: tt.prefetchBytes, batchReads: tt.batchReads}, "page", tt.prefetch); got != tt.want || r.budget != tt.budget {
			t.Errorf("%+v: shares: %v, with %d bytes", tt, got, r.budget)
		}
	}
}

// A transaction without prefetching teaches the client nothing.
func TestReadsWithoutPrefetchingLearnNothing(t *testing.T) {
	c := &readSharing{counters: &store.Counters{}, prefetchBytes: 1000}
	cell := func(qualifier string) Cell { return Cell{Table: "t", Row: "r", Family: "f", Qualifier: qualifier} }
	r := new(reads)
	r.init(c, "", false)
	r.remember(cell("a"), nil, false)
	for range 2 * patternWarmUp {
		if got := r.beginRead(cell("b")); got != nil {
			t.Errorf("prefetches %v", got)
		}
		r.endRead(cell("b"), 1)
	}
	if len(c.patterns.all) != 0 || r.first.started || len(r.first.laterColumns) != 0 {
		t.Errorf("learned %v, %+v", c.patterns.all, r.first)
	}
	var none *reads
	if _, _, known := none.cached(cell("a")); known || none.beginRead(cell("a")) != nil || none.batchedRead(nil, store.Selection{}, 1) != nil {
		t.Error("reads that share nothing found something")
	}
	none.endRead(cell("a"), 1)
	r = new(reads)
	r.init(c, "", true)
	r.endRead(cell("a"), 1) // its row is not in the cache any more
	if len(c.patterns.all) != 0 {
		t.Errorf("learned %v", c.patterns.all)
	}
}

// A prefetched cell counts as used once, and as asked for. A remembered one was not prefetched.
func TestCachedCellIsUsedOnce(t *testing.T) {
	metrics, err := telemetry.NewReads(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &readSharing{counters: &store.Counters{}, metrics: metrics, prefetchBytes: 1000}
	cell := func(qualifier string) Cell { return Cell{Table: "t", Row: "r", Family: "f", Qualifier: qualifier} }
	r := new(reads)
	r.init(c, "page", true)
	r.remember(cell("seen"), []byte("v"), true)
	r.remember(cell("absent"), nil, false)
	r.beginRead(cell("a"))
	r.first.cells = append(r.first.cells, cachedCell{column: cell("b").Column(), value: []byte("four"), present: true}, cachedCell{column: cell("c").Column()})
	for range 3 {
		for _, tt := range []struct {
			qualifier      string
			value          string
			present, known bool
		}{{"seen", "v", true, true}, {"absent", "", false, true}, {"b", "four", true, true}, {"c", "", false, true}, {"d", "", false, false}} {
			if value, present, known := r.cached(cell(tt.qualifier)); string(value) != tt.value || present != tt.present || known != tt.known || (value != nil) != present {
				t.Errorf("%s is %q, %v, %v", tt.qualifier, value, present, known)
			}
		}
	}
	if n, all := r.prefetchUsed.Load(), c.counters.PrefetchUsed.Load(); n != 2 || all != 2 {
		t.Errorf("%d were used, the client counts %d", n, all)
	}
	if got, want := c.patterns.find(patternKey{"t", "page", cell("a").Column()}).columns, []laterColumn{{cell("b").Column(), 1, 4}, {cell("c").Column(), 1, 0}}; !slices.Equal(got, want) {
		t.Errorf("learned %v, want %v", got, want)
	}
	if got := r.beginRead(cell("z")); got != nil {
		t.Errorf("in a row that was begun, it prefetches %v", got)
	}
}

// The longest name of a column that is worth prefetching has MaxKnownColumnName bytes.
func TestNameTooLong(t *testing.T) {
	for _, tt := range []struct {
		family, qualifier int
		want              bool
	}{{1, store.MaxKnownColumnName - 2, false}, {1, store.MaxKnownColumnName - 1, true}, {20, store.MaxKnownColumnName - 21, false}, {20, store.MaxKnownColumnName - 20, true}, {store.MaxKnownColumnName - 1, 0, false}, {store.MaxKnownColumnName, 0, true}} {
		c := Column{Family: strings.Repeat("f", tt.family), Qualifier: strings.Repeat("q", tt.qualifier)}
		if got := nameTooLong(c); got != tt.want {
			t.Errorf("a family of %d bytes and a qualifier of %d: too long: %v", tt.family, tt.qualifier, got)
		}
	}
}

// A batch takes reads in their order: at most 128 of them, of at most eight columns, whose keys and
// column names fit into a request. It always takes the first one.
func TestChooseBatch(t *testing.T) {
	cols := func(from, n int, prefix string) (all []Column) {
		for i := range n {
			all = append(all, Column{Family: "f", Qualifier: fmt.Sprint(prefix, from+i)})
		}
		return all
	}
	// Six columns whose filter has exactly the size that is allowed, or two bytes more in each name.
	long := func(size int) []Column {
		n := (size-4*store.FilterOverhead)/3 - 6*40
		all := cols(0, 6, "")
		for i := range all {
			all[i].Qualifier += strings.Repeat("x", n/12-len("f:0"))
		}
		return all
	}
	key := func(bytes int) string { return strings.Repeat("k", bytes-16) }
	type read struct {
		row     string
		columns []Column
	}
	repeat := func(n int, r read) (all []read) {
		for range n {
			all = append(all, r)
		}
		return all
	}
	budget := long(store.FilterBudget)
	if cost := (store.Selection{Columns: budget}).Cost(); cost > store.FilterBudget || cost <= store.FilterBudget-12*3 {
		t.Fatalf("the filter of six columns costs %d", cost)
	}
	for name, tt := range map[string]struct {
		waiting []read
		n       int
		columns int
	}{
		"none":                {nil, 0, 0},
		"one":                 {[]read{{"r", cols(0, 1, "")}}, 1, 1},
		"two of one column":   {[]read{{"r", cols(0, 1, "")}, {"s", cols(0, 1, "")}}, 2, 1},
		"eight columns":       {[]read{{"r", cols(0, 5, "")}, {"s", cols(3, 5, "")}, {"s", cols(7, 2, "")}}, 2, 8},
		"the ninth column":    {[]read{{"r", cols(0, 5, "")}, {"s", cols(5, 4, "")}}, 1, 5},
		"one of many columns": {[]read{{"r", cols(0, 20, "")}, {"s", cols(0, 1, "")}}, 1, 20},
		"128 rows":            {repeat(maxBatchedRows, read{"r", cols(0, 1, "")}), maxBatchedRows, 1},
		"more rows":           {repeat(maxBatchedRows+1, read{"r", cols(0, 1, "")}), maxBatchedRows, 1},
		"all bytes of keys":   {[]read{{key(format.MaxRowListBytes - 100), cols(0, 1, "")}, {key(100), cols(0, 1, "")}, {"", cols(0, 1, "")}}, 2, 1},
		"one byte more":       {[]read{{key(format.MaxRowListBytes - 100), cols(0, 1, "")}, {key(101), cols(0, 1, "")}}, 1, 1},
		"keys too large":      {[]read{{key(format.MaxRowListBytes + 100), cols(0, 1, "")}, {"r", cols(0, 1, "")}}, 1, 1},
		"names of columns":    {[]read{{"r", budget[:3]}, {"s", budget[3:]}}, 2, 6},
		"one column more":     {[]read{{"r", budget}, {"s", cols(0, 1, "other")}}, 1, 6},
	} {
		b := &readBatcher{}
		for _, r := range tt.waiting {
			b.waiting = append(b.waiting, &waitingRead{row: r.row, columns: r.columns})
		}
		n, columns := b.chooseBatch()
		if n != tt.n || len(columns) != tt.columns {
			t.Errorf("%s: %d reads of %d columns, want %d of %d", name, n, len(columns), tt.n, tt.columns)
		}
		for _, r := range tt.waiting[:n] {
			for _, c := range r.columns {
				if !slices.Contains(columns, c) {
					t.Errorf("%s: column %v is left out", name, c)
				}
			}
		}
	}
}

// A batch is cancelled when its last caller has left, or when only callers with answers remain. It is not sent if
// all callers leave before. A caller that leaves twice, or is answered after it has left, counts once.
func TestReadBatchIsCancelled(t *testing.T) {
	cancelled := 0
	fresh := func(n int) (*readBatcher, *readBatch) {
		batch := &readBatch{waiting: n}
		for range n {
			batch.members = append(batch.members, &waitingRead{batch: batch, done: make(chan struct{})})
		}
		cancelled = 0
		return &readBatcher{running: 1}, batch
	}
	check := func(what string, batch *readBatch, waiting, cancels int) {
		t.Helper()
		if batch.waiting != waiting || cancelled != cancels {
			t.Errorf("%s: %d wait, and it was cancelled %d times; want %d and %d", what, batch.waiting, cancelled, waiting, cancels)
		}
	}
	b, batch := fresh(1)
	if !b.leave(batch.members[0]) {
		t.Error("the only caller is not the first one")
	}
	check("the only caller leaves before the start", batch, 0, 0)

	b, batch = fresh(3)
	batch.cancel = func() { cancelled++ }
	for range 2 {
		if b.leave(batch.members[1]) {
			t.Error("the second caller is the first one")
		}
	}
	check("one leaves twice", batch, 2, 0)
	b.answer(batch, batch.members[1:2], false)
	check("and is answered", batch, 2, 0)
	b.answer(batch, batch.members[:1], false)
	check("another is answered", batch, 1, 0)
	b.leave(batch.members[2])
	check("the last one leaves", batch, 0, 1)

	for _, last := range []bool{false, true} {
		b, batch = fresh(2)
		batch.cancel = func() { cancelled++ }
		b.leave(batch.members[1])
		b.answer(batch, batch.members[:1], last)
		check(fmt.Sprint("answered, and no row is missing: ", last), batch, 0, map[bool]int{false: 1}[last])
		<-batch.members[0].done
	}

	b = &readBatcher{}
	one, other := &waitingRead{}, &waitingRead{}
	b.waiting = []*waitingRead{one, other}
	if b.leave(one) || len(b.waiting) != 1 || b.waiting[0] != other {
		t.Errorf("of two reads without a batch, %d are left", len(b.waiting))
	}
	synctest.Test(t, func(t *testing.T) {
		b, batch := fresh(1) // without a table: a request would crash
		b.leave(batch.members[0])
		b.start(t.Context(), batch)
		synctest.Wait()
		if b.running != 0 {
			t.Errorf("%d requests are under way", b.running)
		}
	})
}

// Callers of one row own what they get.
func TestCloneRow(t *testing.T) {
	row := bigtable.Row{"f": {{Row: "r", Column: "f:a", Value: []byte("a")}, {Row: "r", Column: "f:b", Value: []byte("b")}}, "g": {{Row: "r", Column: "g:a"}}}
	got := cloneRow(row)
	if !reflect.DeepEqual(got, row) {
		t.Fatalf("%v became %v", row, got)
	}
	got["f"][0].Value[0], got["f"][1].Column, got["g"] = 'x', "f:x", nil
	if string(row["f"][0].Value) != "a" || row["f"][1].Column != "f:b" || len(row["g"]) != 1 {
		t.Errorf("a change of the copy changed the row to %v", row)
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
