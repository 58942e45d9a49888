package txn_test

import (
	"context"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// benchTransfer reads two rows and writes them.
func benchTransfer(ctx context.Context, c *txn.Client) error {
	_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table("accounts")
		for _, row := range []string{"bob", "joe"} {
			if _, _, err := accounts.Get(ctx, row, "bal", "usd"); err != nil {
				return err
			}
			accounts.Set(row, "bal", "usd", []byte("1"))
		}
		return nil
	}, txn.Named("transfer"))
	return err
}

// BenchmarkTransaction measures a transaction of two rows, with an emulator in this
// process. It drops all rows every 50 runs, because old versions make the emulator slower.
func BenchmarkTransaction(b *testing.B) {
	env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("accounts", "bal")
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%50 == 49 {
			b.StopTimer()
			if err := env.Admin.DropAllRows(b.Context(), "accounts"); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		if err := benchTransfer(b.Context(), env.Client); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSnapshotRead measures a read of one cell in a snapshot.
func BenchmarkSnapshotRead(b *testing.B) {
	env := txntest.New(b, txntest.Embedded(), txntest.WithoutCheck(), txntest.WithConfig(txn.Config{SyncSecondaries: true}))
	env.CreateTable("accounts", "bal")
	if err := benchTransfer(b.Context(), env.Client); err != nil {
		b.Fatal(err)
	}
	snapshot, err := env.Client.Snapshot(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := snapshot.Table("accounts").Get(b.Context(), "bob", "bal", "usd"); err != nil {
			b.Fatal(err)
		}
	}
}
