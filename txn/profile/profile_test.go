package profile_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/profile"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestContext counts the requests of transactions through each of two Bigtable clients.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		usualFaults, lowFaults := txntest.NewFaults(t), txntest.NewFaults(t)
		usual, _ := env.Open(usualFaults.DialOptions()...)
		low, _ := env.Open(lowFaults.DialOptions()...)
		c, err := txn.NewClient(t.Context(), profile.Tables(usual), txn.Config{TokenTTL: -1, SchemaMaxAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		batch := profile.New(low)
		write := func(ctx context.Context) {
			t.Helper()
			_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
				if _, _, err := tx.Table("a").Get(ctx, "1", "f", "q"); err != nil {
					return err
				}
				tx.Table("a").Set("1", "f", "q", nil)
				tx.Table("a").Set("2", "f", "q", nil)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		type counts = map[txntest.Step]int
		want := func(what string, ofUsual, ofLow counts) {
			t.Helper()
			if u, l := usualFaults.Count(), lowFaults.Count(); !maps.Equal(u, ofUsual) || !maps.Equal(l, ofLow) {
				t.Errorf("%s: %v through the usual profile and %v through the other one; want %v and %v", what, u, l, ofUsual, ofLow)
			}
			usualFaults.Reset()
			lowFaults.Reset()
		}
		write(t.Context())
		usualFaults.Reset()
		own := counts{txntest.StepRead: 1, txntest.StepPrewrite: 2, txntest.StepCommit: 1}
		write(batch.Context(t.Context()))
		want("a transaction of the profile", counts{txntest.StepOracle: 2, txntest.StepSecondaries: 1}, own)
		all := maps.Clone(own)
		all[txntest.StepOracle], all[txntest.StepSecondaries] = 2, 1
		write((*profile.Profile)(nil).Context(batch.Context(t.Context())))
		want("a transaction without a profile", all, counts{})

		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		usualFaults.Reset()
		rows := 0
		err = jobs.Scan{Snapshot: s, Table: "a", Parallel: 1}.Run(batch.Context(t.Context()), c, func(context.Context, int, bigtable.Row) error { rows++; return nil })
		if err != nil || rows != 2 {
			t.Errorf("%d rows, %v", rows, err)
		}
		if u := usualFaults.Count(); len(u) > 0 {
			t.Errorf("a parallel scan of the profile made %v through the usual one", u)
		}
	})
}
