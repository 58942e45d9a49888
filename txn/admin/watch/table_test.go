package watch

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestNotificationsOfRows: however many changes wait for an observer that nobody runs, a page
// of rows has one notification of each column.
func TestNotificationsOfRows(t *testing.T) {
	long.RacedAtNight(t)
	env := txntest.New(t)
	env.CreateTable("t", "f")
	for _, q := range []string{"a", "b"} {
		if err := changes.RegisterObserver(t.Context(), env.Client, "t", txn.Column{Family: "f", Qualifier: q}, "o"+q, false); err != nil {
			t.Fatal(err)
		}
	}
	const rows, versions = 20, 30
	for v := range versions {
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for r := range rows {
				tx.Table("t").Set(fmt.Sprintf("row%02d", r), "f", "a", fmt.Append(nil, v))
				tx.Table("t").Set(fmt.Sprintf("row%02d", r), "f", "b", fmt.Append(nil, v))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := (&Table{Name: "t"}).readRows(t.Context(), env.Bigtable, bigtable.InfiniteRange(""), 100)
	if err != nil || len(found) != rows {
		t.Fatalf("%d rows, %v", len(found), err)
	}
	for _, r := range found {
		if n := len(r[format.NotifyFamily]); n > 3 || !newRow("t", r, time.Now()).notified { // one may come twice
			t.Errorf("%s: %d notifications", r.Key(), n)
		}
	}
}
