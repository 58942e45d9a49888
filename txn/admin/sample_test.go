package admin_test

import (
	"context"
	"fmt"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestSampleRows: a sample of all rows counts every stored cell, and a smaller one says
// that it is a part.
func TestSampleRows(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("accounts", "bal")
	m := bigtable.NewMutation()
	m.Set("bal", "usd", bigtable.Now(), []byte("plain"))
	if err := env.Bigtable.Open("accounts").Apply(ctx, "row0", m); err != nil {
		t.Fatal(err)
	}
	// What is stored is counted, so the secondaries have to be committed.
	_, err := env.NewClient(txn.Config{SyncSecondaries: true}).Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for i := 1; i < 10; i++ {
			tx.Table("accounts").Set(fmt.Sprint("row", i), "bal", "usd", []byte("10"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	parts := admin.Parts(ctx, env.Bigtable, "accounts", "row2", "row5")
	rows := 0
	for _, part := range parts {
		if err := env.Bigtable.Open("accounts").ReadRows(ctx, part, func(bigtable.Row) bool { rows++; return true }); err != nil {
			t.Fatal(err)
		}
	}
	if rows != 3 {
		t.Errorf("%d parts have %d rows, want 3", len(parts), rows)
	}
	all, err := admin.SampleRows(ctx, env.Bigtable, "accounts", 1000)
	if err != nil {
		t.Fatal(err)
	}
	if !all.Whole || all.Rows != 10 || all.Values != 10 || all.Plain != 1 || all.Bytes != 5+9*2 || all.Writes != 9 {
		t.Errorf("%+v", all)
	}
	if some, err := admin.SampleRows(ctx, env.Bigtable, "accounts", 4); err != nil || some.Whole || some.Rows >= 10 {
		t.Errorf("%v, %+v", err, some)
	}
}
