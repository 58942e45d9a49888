package emulator_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A collection that follows changes keeps the write records of transactions that may have locks
// left, and removes their values. A check does not report acknowledgments because of that. The clients
// die after they have committed a run, before they have noted that its locks are gone.
func TestCheckOfCollectedAcknowledgments(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		column := txn.Column{Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", column, "o", false); err != nil {
			t.Fatal(err)
		}
		advance(retention)
		followChanges(t, env) // the first run reads every row
		observe := func(c *txn.Client, i int) {
			mustSet(t, env.Client, strconv.Itoa(i), "bob")
			if _, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				seen, err := changes.Observe(ctx, tx, txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"})
				if err != nil {
					return err
				}
				changes.Acknowledge(tx, seen, "o")
				tx.Table("a").Set("zoe", "f", "out", []byte(strconv.Itoa(i))) // a secondary
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{}, faults.DialOptions()...)
			observe(c, i)
			synctest.Wait() // its secondary is committed
			faults.Kill()
			advance(time.Minute)
		}
		observe(env.NewClient(txn.Config{}), 9)
		advance(time.Minute)
		checkTable(t, env, "a")
		advance(retention)
		if r := runGC(t, env.Client, gc.Config{FullEvery: 240 * time.Hour}); !r.Changes {
			t.Fatal("the collection has read every row")
		}
		raw, err := env.Bigtable.Open("a").ReadRow(t.Context(), "bob", bigtable.RowFilter(bigtable.ColumnFilter("(_ack:)?f:q/o")))
		if records, values := len(raw[format.WriteFamily]), len(raw[format.AckFamily]); err != nil || records != 3 || values != 1 {
			t.Fatalf("the acknowledgment has %d records and %d values, %v", records, values, err)
		}
		checkTable(t, env, "a")
		runGC(t, env.Client, gc.Config{})
		checkTable(t, env, "a")
	})
}
