package changes_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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
			for _, err := range changes.Pending(t.Context(), env.Client, tables, changes.Part{Of: 1}) {
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

// A caller who leaves the loop costs no further request, although the journal has an old entry without a
// notification, which the loop would examine next.
func TestBreakOutOfPendingSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		cell := txn.Cell{Table: "a", Row: "x", Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", cell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("x", "f", "q", nil)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		none := cell
		none.Row = "z"
		if err := changes.Enter(t.Context(), env.Client, ts, none); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		for _, leaves := range []bool{true, false} {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			if _, err := c.Timestamp(t.Context()); err != nil { // it knows how old entries are
				t.Fatal(err)
			}
			sent := 0
			for n, err := range changes.Pending(t.Context(), c, []string{"a"}, changes.Part{Of: 1}) {
				if err != nil || n.Cell != cell {
					t.Fatal(n, err)
				}
				if sent = len(faults.Calls()); leaves {
					break
				}
			}
			synctest.Wait()
			if more := len(faults.Calls()) - sent; sent == 0 || leaves != (more == 0) {
				t.Errorf("the caller leaves: %t; %d requests, and then %d", leaves, sent, more)
			}
		}
	})
}
