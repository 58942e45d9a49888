package bulk_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/bulk"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// The primary's row is prewritten by itself. So are the rows of tables of which there are few others,
// and those with contended cells.
func TestSplit(t *testing.T) {
	tables := map[byte]*store.Table{'a': {Name: "a"}, 'b': {Name: "b"}}
	for _, tt := range []struct{ all, contended, rows, some string }{
		{"a1", "", "a1", ""},
		{"a1 a2 a3", "", "a1 a2 a3", ""},
		{"a1 a2 a3 a4", "", "a1", "a2 a3 a4"},
		{"b1 a2 a3 a4", "", "b1", "a2 a3 a4"},
		{"a1 a2 a3 b4 b5", "", "a1 a2 a3 b4 b5", ""},
		{"a1 a2 b3 a4 b5 a6", "", "a1 b3 b5", "a2 a4 a6"},
		{"a1 a2 b3 a4 b5 a6 b7", "", "a1", "a2 a4 a6 b3 b5 b7"},
		{"a1 a2 a3 a4 a5", "a1", "a1", "a2 a3 a4 a5"},
		{"a1 a2 a3 a4 a5", "a3 b2 b4", "a1 a3", "a2 a4 a5"},
		{"a1 a2 a3 a4 a5", "a3 a4", "a1 a3 a4 a2 a5", ""},
	} {
		var all []*store.RowWrites
		for name := range strings.FieldsSeq(tt.all) {
			all = append(all, &store.RowWrites{Table: tables[name[0]], Row: name[1:]})
		}
		var contended []format.Cell
		for name := range strings.FieldsSeq(tt.contended) {
			contended = append(contended, format.Cell{Table: name[:1], Row: name[1:]})
		}
		names := func(rows []*store.RowWrites) (all string) {
			for _, r := range rows {
				all += " " + r.Table.Name + r.Row
			}
			return strings.TrimSpace(all)
		}
		before := names(all)
		rows, some := bulk.Split(all, 3, contended)
		if names(rows) != tt.rows || names(some) != tt.some || names(all) != before {
			t.Errorf("of %s, with %s contended: %s one by one and %s in bulk, want %s and %s", tt.all, tt.contended, names(rows), names(some), tt.rows, tt.some)
		}
	}
}

// Rows are divided by their tables, in order. Those of one table are not copied.
func TestByTable(t *testing.T) {
	tables := []*store.Table{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	var rows []*store.RowWrites
	for _, i := range []int{1, 0, 1, 2, 0} {
		rows = append(rows, &store.RowWrites{Table: tables[i]})
	}
	want := [][]*store.RowWrites{{rows[0], rows[2]}, {rows[1], rows[4]}, {rows[3]}}
	if got := bulk.ByTable(rows); !slices.EqualFunc(got, want, slices.Equal[[]*store.RowWrites]) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := bulk.ByTable(want[1]); len(got) != 1 || len(got[0]) != 2 || &got[0][0] != &want[1][0] {
		t.Errorf("of one table: %v, want %v itself", got, want[1])
	}
}
