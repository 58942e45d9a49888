package changes_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A caller may leave the loop over what the journal contains, whatever is left in the same table or
// in another one.
func TestBreakOutOfPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		tables, column := []string{"a", "b"}, txn.Column{Family: "f", Qualifier: "q"}
		for _, table := range tables {
			env.CreateTable(table, "f")
			if err := changes.RegisterObserver(t.Context(), env.Client, table, column, "o", false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for _, table := range tables {
				tx.Table(table).Set("x", "f", "q", nil)
				tx.Table(table).Set("y", "f", "q", nil)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for most := 1; most <= 4; most++ {
			n := 0
			for _, err := range changes.Pending(t.Context(), env.Client, tables, 0, 1) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n == most {
					break
				}
			}
			if n != most {
				t.Errorf("%d notifications, want %d", n, most)
			}
		}
	})
}
