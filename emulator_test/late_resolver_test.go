package emulator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestLateRollForwardAfterCollection delays a resolver's roll-forward. Meanwhile other
// clients roll the cell forward and overwrite it, and the version is collected (here by
// hand). The late roll-forward must not write the record of a version whose data is
// gone: it is conditional on the lock (hazards 9 and 11).
func TestLateRollForwardAfterCollection(t *testing.T) {
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
		cells := []txn.Cell{{Table: "left", Row: "p", Family: "f", Qualifier: "q"}, {Table: "right", Row: "s", Family: "f", Qualifier: "q"}}
		set := func(c *txn.Client, value string) (start, commit bigtable.Timestamp) {
			t.Helper()
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, cell := range cells {
				tx.Table(cell.Table).Set(cell.Row, cell.Family, cell.Qualifier, []byte(value))
			}
			ts, err := tx.Commit(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return tx.StartTS().Cell(), ts.Cell()
		}
		// A client that dies before its secondary is committed.
		faults := txntest.NewFaults(t)
		dead := env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1}, faults.DialOptions()...)
		dies := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		start, commit := set(dead, "1")
		<-dies.Fired()
		faults.Kill()

		// The roll-forward of this resolver is late.
		slow := txntest.NewFaults(t)
		late := slow.OnStep(txntest.StepRollForward, txntest.Delay)
		resolver := env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1}, slow.DialOptions()...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for l, err := range admin.Locks(ctx, resolver, "right", nil) {
			if err != nil {
				t.Fatal(err)
			}
			_, _ = admin.Resolve(ctx, resolver, l)
		}
		<-late.Fired()

		set(b, "2") // rolls the secondary forward, and overwrites it
		m := bigtable.NewMutation()
		m.DeleteTimestampRange(format.WriteFamily, "f:q", commit, commit+1000)
		m.DeleteTimestampRange("f", "q", start, start+1000)
		for _, cell := range cells {
			if err := env.Bigtable.OpenTable(cell.Table).Apply(t.Context(), cell.Row, m); err != nil {
				t.Fatal(err)
			}
		}
		late.Release()
		synctest.Wait()
		env.Check()
	})
}

// A reader finds the lock of a transaction that committed after the reader's timestamp.
// The read returns at once. The lock is rolled forward in the background; here that
// request does not arrive before the read ends.
func TestReadBelowCommitDoesNotWait(t *testing.T) {
	crashEnv(t, func(t *testing.T, env *txntest.Env, a, b *txn.Client) {
		faults := txntest.NewFaults(t)
		dead := env.NewClient(txn.Config{LockTTL: crashTTL, TokenTTL: -1}, faults.DialOptions()...)
		dies := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		tx, err := dead.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("left").Set("p", "f", "q", []byte("new"))
		tx.Table("right").Set("s", "f", "q", []byte("new"))
		slow := txntest.NewFaults(t)
		rollForward := slow.OnStep(txntest.StepRollForward, txntest.Hold)
		reader := env.NewClient(txn.Config{TokenTTL: -1}, slow.DialOptions()...)
		s, err := reader.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-dies.Fired()
		faults.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if v, ok, err := s.Table("right").Get(ctx, "s", "f", "q"); ok || err != nil {
			t.Errorf("read %q, %v; want absent, at once", v, err)
		}
		<-rollForward.Fired()
		rollForward.Release()
		synctest.Wait()
	})
}

// Hazard 2: the primary is prewritten and committed after a resolver has read it and
// before the resolver asks the oracle. The resolver has to ask the oracle for asOf
// before it reads the primary. Otherwise it would take the commit, which is below asOf,
// as no commit of this transaction, and a part of the transaction would be lost.
func TestTimestampBeforeStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		txntest.Patient(a)
		late := faults.On("prewrite of bob", stepOn(txntest.StepPrewrite, "bob"), txntest.Hold, 1)
		secondaries := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob", "joe"))
		<-late.Fired()
		advance(11 * time.Second)
		status := newAnswerHold(stepOn(txntest.StepRead, "bob"))
		before := takeSnapshot(t, env.NewClient(txn.Config{TokenTTL: -1}, status.dialOption()))
		reader := inBackground(func() error { wantValue(t, before, "joe", ""); return nil })
		<-status.held // the resolver has read the empty primary
		late.Release()
		if o := <-owner; o.err != nil {
			t.Errorf("commit: %v", o.err)
		}
		close(status.release)
		<-reader
		secondaries.Release()
		synctest.Wait()
		for _, row := range []string{"bob", "joe"} {
			wantValue(t, takeSnapshot(t, env.Client), row, "3")
		}
	})
}
