package txntest_test

import (
	"fmt"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestSamplesOfSmallTables: a table of few rows is always divided at its last row.
func TestSamplesOfSmallTables(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	tbl := env.Bigtable.Open("a")
	put := func(row string, size int) {
		m := bigtable.NewMutation()
		m.Set("f", "q", 0, make([]byte, size))
		if err := tbl.Apply(t.Context(), row, m); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 100 {
		put(fmt.Sprintf("row%02d", n), 10)
	}
	for range 100 { // the emulator alone would divide it elsewhere in 63 of 100
		keys, err := tbl.SampleRowKeys(t.Context())
		if err != nil || !slices.Equal(keys, []string{"row99"}) {
			t.Fatalf("%q, %v", keys, err)
		}
	}
	for n := range 300 {
		put(fmt.Sprintf("large%03d", n), 20<<10)
	}
	for range 100 {
		if keys, err := tbl.SampleRowKeys(t.Context()); err != nil {
			t.Fatal(err)
		} else if len(keys) > 2 {
			return
		}
	}
	t.Error("a large table is never divided")
}
