package txn

import (
	"fmt"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

type noTables struct{}

func (noTables) OpenTable(string) bigtable.TableAPI { return nil }

// TestCachePrefetched: of the columns that were read ahead, those are cached that the answer decides, that
// no Get has asked for, and that fit.
func TestCachePrefetched(t *testing.T) {
	const base tso.Timestamp = 1_800_000_000_000_000
	metrics, err := telemetry.NewReads(nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.NewRequests(noTables{}, store.Config{})
	if err != nil {
		t.Fatal(err)
	}
	column := func(q string) Column { return Column{Family: "f", Qualifier: q} }
	cell := func(q string) Cell { return Cell{Table: "t", Row: "r", Family: "f", Qualifier: q} }
	item := func(family, q string, at tso.Timestamp, value []byte) bigtable.ReadItem {
		return bigtable.ReadItem{Row: "r", Column: family + ":" + q, Timestamp: (base + at).Cell(), Value: value}
	}
	record := func(q string) bigtable.ReadItem {
		_, value := format.WriteRecord{StartTS: base + 1, Kind: format.KindPut, Primary: cell(q)}.Encode(cell(q))
		return item(format.WriteFamily, "f:"+q, 2, value)
	}
	for _, tt := range []struct {
		name  string
		edit  func(bigtable.Row)
		bytes int // in the cache
		begun bool
		want  string
	}{
		{"known columns", func(bigtable.Row) {}, 0, true, "a=one absent"},
		{"no room but for an absent one", func(bigtable.Row) {}, maxCachedBytes - 2, true, "absent"},
		{"just enough room", func(bigtable.Row) {}, maxCachedBytes - 3, true, "a=one absent"},
		{"a damaged name of a lock", func(r bigtable.Row) { r[format.LockFamily][0].Column = format.LockFamily + ":damaged" }, 0, true, ""},
		{"a damaged record", func(r bigtable.Row) { r[format.WriteFamily][0].Value = []byte{255} }, 0, true, ""},
		{"a row that the cache has dropped", func(bigtable.Row) {}, 0, false, ""},
	} {
		c := &readSharing{counters: &store.Counters{}, metrics: metrics, prefetchBytes: 1000}
		r := new(reads)
		r.init(c, "page", true)
		if tt.begun {
			r.beginRead(cell("first"))
			r.endRead(cell("asked"), 1)
			r.first.pattern.count(column("a"), 1)
		}
		r.bytes = tt.bytes
		raw := bigtable.Row{
			format.LockFamily:  {item(format.LockFamily, "f:locked", 5, []byte("not read"))},
			format.WriteFamily: {record("a"), record("asked"), record("elsewhere")},
			"f":                {item("f", "a", 1, []byte("one")), item("f", "asked", 1, []byte("two")), item("f", "elsewhere", 3, []byte("prewritten"))},
		}
		tt.edit(raw)
		r.cachePrefetched(t.Context(), s.NewTable("t"), "r", raw, []Column{column("a"), column("absent"), column("asked"), column("elsewhere"), column("locked")}, base+9)
		var got []string
		for _, cached := range r.first.cells {
			text := cached.column.Qualifier
			if cached.present {
				text += "=" + string(cached.value)
			}
			got = append(got, text)
		}
		n := int64(len(got))
		if fmt.Sprint(got) != "["+tt.want+"]" || r.prefetched.Load() != n || c.counters.Prefetched.Load() != n {
			t.Errorf("%s: %v, want %s; %d counted", tt.name, got, tt.want, r.prefetched.Load())
		}
		if size := map[bool]int{true: 3}[slices.Contains(got, "a=one")]; r.bytes != tt.bytes+size {
			t.Errorf("%s: %d bytes are cached, want %d", tt.name, r.bytes, tt.bytes+size)
		}
		if n > 0 && r.first.pattern.columns[1] != (laterColumn{column("a"), 1, 3}) {
			t.Errorf("%s: learned %v", tt.name, r.first.pattern.columns)
		}
	}
	// A row whose first Get was the only one has no pattern yet.
	c := &readSharing{counters: &store.Counters{}, metrics: metrics, prefetchBytes: 1000}
	r := new(reads)
	r.init(c, "page", true)
	r.beginRead(cell("first"))
	if r.cachePrefetched(t.Context(), s.NewTable("t"), "r", bigtable.Row{}, []Column{column("a")}, base+9); len(r.first.cells) != 1 || r.first.pattern != nil {
		t.Errorf("of an empty row: %+v", r.first)
	}
}

// TestReadsOfManyColumns: a read of more columns than a batch takes is a request of its own. The reads of a
// table share batches.
func TestReadsOfManyColumns(t *testing.T) {
	r := new(reads)
	r.init(&readSharing{batchReads: 1}, "", false)
	a, b := &store.Table{Name: "a"}, &store.Table{Name: "b"}
	columns := make([]Column, maxBatchedColumns+1)
	for _, table := range []*store.Table{a, b, a} {
		if r.batchedRead(table, store.Selection{Columns: columns[1:]}, 1) == nil || r.batchedRead(table, store.Selection{Columns: columns}, 1) != nil {
			t.Errorf("a batch takes %d columns, or more", maxBatchedColumns)
		}
	}
	if len(r.batchers) != 2 || r.batchers[a] == r.batchers[b] {
		t.Errorf("%d tables have batches", len(r.batchers))
	}
}
