package emulator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A bulk prewrite arrives again after a run that follows changes has removed the primary's record.
// Unlike a run that reads every row, it does not move the timestamp below which locks are late. So
// other clients take the transaction for one that died.
func TestDuplicateBulkPrewriteAfterCollectionOfChanges(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		advance(retention)
		followChanges(t, env)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		bulk := faults.On("bulk", isBulkPrewrite, txntest.Echo, 1)
		mustSet(t, c, "1", "primary", "kept", "overwritten", "deleted", "rewritten")
		<-bulk.Fired()
		mustSet(t, c, "2", "primary", "overwritten")
		if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Delete("deleted", "f", "q")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		advance(retention + time.Minute)
		wantChanges(t, env, 5, 3) // of primary, overwritten and deleted
		mustSet(t, c, "2", "rewritten")
		bulk.Release()
		for _, row := range []string{"kept", "overwritten", "deleted", "rewritten"} {
			if len(stored(t, env, row)["_lock"]) != 1 {
				t.Errorf("row %s has no lock of the duplicate", row)
			}
		}
		env.Check()
		want := func() {
			t.Helper()
			s := takeSnapshot(t, env.Client)
			for row, value := range map[string]string{"primary": "2", "kept": "1", "overwritten": "2", "deleted": "", "rewritten": "2"} {
				wantValue(t, s, row, value)
			}
		}
		want()
		synctest.Wait()
		wantNoLocks(t, env.Client)
		env.Check()
		advance(3 * retention)
		runGC(t, env.Client, gc.Config{})
		want()
		env.Check()
	})
}

// A bulk prewrite arrives again between the read of a row and the removal of its garbage. The
// consistency check accepts what is stored then.
func TestDuplicateBulkPrewriteDuringCollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newGCEnv(t)
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		bulk := faults.On("bulk", isBulkPrewrite, txntest.Echo, 1)
		mustSet(t, c, "1", "primary", "x", "y", "z")
		<-bulk.Fired()
		mustSet(t, c, "2", "x")
		advance(3 * retention)
		held := txntest.NewFaults(t)
		collector := env.NewClient(txn.Config{}, held.DialOptions()...)
		removal := held.OnStep(txntest.StepCollect, txntest.Hold)
		collected := inBackground(func() error { _, err := gc.Run(t.Context(), collector, gc.Config{Retention: retention}); return err })
		<-removal.Fired()
		bulk.Release()
		removal.Release()
		if o := <-collected; o.err != nil {
			t.Error(o.err)
		}
		env.Check()
		wantValue(t, takeSnapshot(t, env.Client), "x", "2")
		wantValue(t, takeSnapshot(t, env.Client), "y", "1")
		wantValue(t, takeSnapshot(t, env.Client), "z", "1")
		synctest.Wait()
		env.Check()
		wantNoLocks(t, env.Client)
	})
}
