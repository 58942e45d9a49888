package bulk_test

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/bulk"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// The primary's row and rows of tables without the property are prewritten one by one. So are all if
// there are few others.
func TestSplit(t *testing.T) {
	env := txntest.New(t)
	env.InitTable(admin.TableSpec{Name: "with", Families: []string{"f"}, BulkPrewrite: true})
	env.CreateTable("without", "f")
	var all []*store.RowWrites
	for _, name := range []string{"with", "with", "without", "with", "without"} {
		table, err := access.ResolverOf(env.Client).Table(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &store.RowWrites{Table: table})
	}
	for _, tt := range []struct{ all, rows, some []int }{
		{[]int{0}, []int{0}, nil},
		{[]int{0, 1, 2}, []int{0, 1, 2}, nil},
		{[]int{0, 2, 4}, []int{0, 2, 4}, nil},
		{[]int{0, 1, 3}, []int{0}, []int{1, 3}},
		{[]int{2, 0, 4, 1}, []int{2, 4}, []int{0, 1}},
		{[]int{0, 1, 2, 3, 4}, []int{0, 2, 4}, []int{1, 3}},
	} {
		var in []*store.RowWrites
		for _, i := range tt.all {
			in = append(in, all[i])
		}
		rows, some := bulk.Split(in, 10, nil)
		index := func(rows []*store.RowWrites) (at []int) {
			for _, r := range rows {
				at = append(at, slices.Index(all, r))
			}
			return at
		}
		if !slices.Equal(index(rows), tt.rows) || !slices.Equal(index(some), tt.some) {
			t.Errorf("of %v: %v one by one and %v in bulk, want %v and %v", tt.all, index(rows), index(some), tt.rows, tt.some)
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
