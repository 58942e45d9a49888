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

// The primary's row, rows of tables without the property, and rows with conditions of their own
// (txn.ForUpdate) are prewritten one by one. So are all if there are few others.
func TestSplit(t *testing.T) {
	env := txntest.New(t)
	env.InitTable(admin.TableSpec{Name: "with", Families: []string{"f"}, BulkPrewrite: true})
	env.CreateTable("without", "f")
	var all []*store.RowWrites
	for _, name := range []string{"with", "with", "without", "with", "with"} {
		table, err := access.ResolverOf(env.Client).Table(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &store.RowWrites{Table: table})
	}
	for _, tt := range []struct{ conditional, rows, some []int }{
		{nil, []int{0, 2}, []int{1, 3, 4}},
		{[]int{3}, []int{0, 2, 3}, []int{1, 4}},
		{[]int{1, 4}, []int{0, 1, 2, 3, 4}, nil},
	} {
		rows, some := bulk.Split(all, 10, func(r *store.RowWrites) bool { return slices.Contains(tt.conditional, slices.Index(all, r)) })
		index := func(rows []*store.RowWrites) (at []int) {
			for _, r := range rows {
				at = append(at, slices.Index(all, r))
			}
			return at
		}
		if !slices.Equal(index(rows), tt.rows) || !slices.Equal(index(some), tt.some) {
			t.Errorf("with conditions in %v: %v one by one and %v in bulk, want %v and %v", tt.conditional, index(rows), index(some), tt.rows, tt.some)
		}
	}
}
