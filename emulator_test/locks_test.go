package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Locks lists all locks, even if one record cannot be read.
func TestLocksAfterAnUnreadableOne(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.Embedded(), txntest.WithoutCheck())
	env.CreateTable("a", "f")
	c := env.NewClient(txn.Config{TokenTTL: -1})
	// A dead client's locks, one in a later format version, and one whose
	// qualifier names no column.
	faults := txntest.NewFaults(t)
	rule := faults.On("no commit", step(txntest.StepCommit), txntest.Crash, 0)
	dead := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	tx := beginSet(t, dead, "1", "r1", "r5")
	ctx, cancel := context.WithCancel(t.Context())
	done := commitInBackground(ctx, tx)
	<-rule.Fired()
	for row, qualifier := range map[string]string{"r2": "f:q", "r3": "nonsense"} {
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, qualifier, tso.Timestamp(1795152600000000).Cell(), []byte{8, 99})
		if err := env.Bigtable.Open("a").Apply(t.Context(), row, m); err != nil {
			t.Fatal(err)
		}
	}
	var rows []string
	unreadable := map[string]bool{}
	for l, err := range admin.Locks(t.Context(), c, "a", nil) {
		rows = append(rows, l.Cell.Row)
		switch {
		case errors.Is(err, txn.ErrCorrupt), errors.Is(err, txn.ErrFormatVersion):
			unreadable[l.Cell.Row] = l.StartTS == 1795152600000000
		case err != nil:
			t.Fatal(err)
		}
	}
	if len(rows) != 4 || !unreadable["r2"] || !unreadable["r3"] {
		t.Errorf("locks in rows %q, unreadable %v", rows, unreadable)
	}
	n := 0
	for l, err := range admin.TransactionLocks(t.Context(), c, "a", bigtable.NewRange("r3", ""), tx.StartTS()) {
		if err != nil || l.Cell.Row != "r5" {
			t.Errorf("%v, %v", l, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d locks of the transaction from r3 on, want 1", n)
	}
	faults.Kill()
	cancel()
	<-done
}

// Resolve reads the primary again before it decides. Before the fix it trusted the ttl
// from the time of the listing, and rolled a live transaction back.
func TestResolveOfOldListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		slow := faults.OnStep(txntest.StepCommit, txntest.Hold)
		owner := commitInBackground(t.Context(), beginSet(t, a, "3", "bob"))
		<-slow.Fired()
		listed := 0
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			listed++
			advance(15 * time.Second) // heartbeats extend the lock meanwhile
			if s, err := admin.Resolve(t.Context(), env.Client, l); err != nil || s.State != format.StateLocked {
				t.Errorf("resolve: %v, %v; want locked", s.State, err)
			}
		}
		slow.Release()
		if o := <-owner; o.err != nil || listed != 1 {
			t.Errorf("commit: %v; %d locks listed, want 1", o.err, listed)
		}
	})
}
