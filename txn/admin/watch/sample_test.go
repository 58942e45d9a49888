package watch

import (
	"context"
	"fmt"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestSample: a sample of rows with many versions ends early, and one of other rows has all
// that it may have.
func TestSample(t *testing.T) {
	long.RacedAtNight(t)
	env := txntest.New(t, txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("many", "f")
	env.CreateTable("few", "f")
	write := func(table string, rows, versions int) {
		t.Helper()
		for v := range versions {
			if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				for r := range rows {
					tx.Table(table).Set(fmt.Sprintf("row%02d", r), "f", "q", fmt.Append(nil, v))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("many", 25, 50)
	write("few", 55, 2)
	many, _, err := readSample(t.Context(), env.Bigtable, "many", "", "")
	if err != nil || many.Rows != 20 || many.Cells != sampleCells || many.Records != 1000 || many.Garbage != 980 {
		t.Errorf("%+v, %v", many, err)
	}
	few, _, err := readSample(t.Context(), env.Bigtable, "few", "", "")
	if err != nil || few.Rows != sampleRows || few.Records != 100 || few.Garbage != 50 {
		t.Errorf("%+v, %v", few, err)
	}
}
