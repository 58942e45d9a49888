package notify_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// versions returns how many entries there are, of all cells.
func versions(t *testing.T, env *txntest.Env) (n int) {
	t.Helper()
	if err := env.Bigtable.Open("percolator").ReadRows(t.Context(), bigtable.PrefixRange("journal/"), func(r bigtable.Row) bool {
		for _, items := range r {
			n += len(items)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// failingPut writes a cell and another one in a transaction that conflicts on the other one.
func failingPut(t *testing.T, env *txntest.Env, c *txn.Client, row string) {
	t.Helper()
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(t, env.Client, middle, "other", "faster")
	tx.Table("docs").Set(row, input.Family, input.Qualifier, []byte("v"))
	tx.Table("docs").Set("other", middle.Family, middle.Qualifier, []byte("v"))
	if _, err := tx.Commit(t.Context()); err == nil {
		t.Error("the transaction was committed")
	}
	pass(time.Second)
}

// TestEntriesOfHotCell: the row of a cell that is written again and again, and that no worker handles,
// does not grow.
func TestEntriesOfHotCell(t *testing.T) {
	long.RacedAtNight(t)
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		clients := []*txn.Client{env.NewClient(txn.Config{TokenTTL: time.Minute}), env.NewClient(txn.Config{TokenTTL: time.Minute})}
		for i := range 200 {
			c := clients[i/10%2]
			put(t, c, input, "hot", fmt.Sprint(i))
			if i%7 == 0 {
				failingPut(t, env, c, "hot")
			}
			if err := changes.Notify(t.Context(), c, inputCell("hot")); err != nil {
				t.Fatal(err)
			}
		}
		if n := versions(t, env); n > 2*len(clients) {
			t.Errorf("%d entries of one cell after %d commits by %d clients", n, 200, len(clients))
		}
	})
}

// TestWithdrawalBringsBack: a transaction that fails does not take the entry of an earlier change
// with it, which it has replaced.
func TestWithdrawalBringsBack(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute})
		put(t, c, input, "row", "v")
		failingPut(t, env, c, "row")
		if n := versions(t, env); n != 1 {
			t.Errorf("%d entries", n)
		}
		for v, err := range admin.Check(t.Context(), c, "docs", nil) {
			t.Error(v, err)
		}
	})
}

// TestReplacedEntryOfLateRequest: a request that replaces an entry arrives after its transaction was
// rolled back. An entry remains.
func TestReplacedEntryOfLateRequest(t *testing.T) {
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...)
		put(t, c, input, "row", "v")
		late := faults.OnStep(txntest.StepJournal, txntest.Delay)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		put(t, env.Client, middle, "other", "faster")
		tx.Table("docs").Set("row", input.Family, input.Qualifier, []byte("v"))
		tx.Table("docs").Set("other", middle.Family, middle.Qualifier, []byte("v"))
		if _, err := tx.Commit(ctx); err == nil {
			t.Error("the transaction was committed")
		}
		<-late.Fired()
		pass(time.Minute)
		late.Release()
		pass(time.Minute)
		for v, err := range admin.Check(t.Context(), c, "docs", nil) {
			t.Error(v, err)
		}
	})
}
