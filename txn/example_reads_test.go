package txn_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
)

// A service that answers from snapshots that may be a second old. Most of its reads take one
// request. It always sees its own commits.
func ExampleMaxStaleness() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "accounts", "bal")
	defer stop()

	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		tx.Table("accounts").Set("bob", "bal", "eur", []byte("3"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx, txn.MaxStaleness(time.Second), txn.Named("page"))
	if err != nil {
		log.Fatal(err)
	}
	for _, currency := range []string{"usd", "eur"} {
		value, _, err := snapshot.Table("accounts").Get(ctx, "bob", "bal", currency)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s %s\n", value, currency)
	}
	// Output:
	// 10 usd
	// 3 eur
}

// A mailbox has a row for each user and a qualifier for each message. The newest messages have the
// smallest qualifiers, so the first page is the beginning of the row.
func ExampleCellsPerRow() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "mail", "msg")
	defer stop()
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for i := range 100 {
			tx.Table("mail").Set("bob", "msg", fmt.Sprintf("inbox/%03d", i), []byte("hello"))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	inbox := txn.Qualifiers("msg", "inbox/", txn.PrefixEnd("inbox/"))
	row, err := snapshot.Table("mail").ReadRow(ctx, "bob", inbox, txn.CellsPerRow(2), txn.KeysOnly())
	if err != nil {
		log.Fatal(err)
	}
	for _, item := range row["msg"] {
		fmt.Println(item.Column)
	}
	// Output:
	// msg:inbox/000
	// msg:inbox/001
}

// A service logs its slow and its repeated transactions.
func ExampleOnAttempt() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "accounts", "bal")
	defer stop()
	watch := txn.OnAttempt(func(_ context.Context, a txn.Attempt) {
		if a.Retry || a.Duration > time.Minute {
			log.Printf("run %d of %s: %v after %v, %v of it for locks", a.Number, a.Name, a.Err, a.Duration, a.LockWait)
		}
		fmt.Printf("run %d of %s: rows %d, cells %d, bytes %d\n", a.Number, a.Name, a.Rows, a.Cells, a.Bytes)
	})
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		return nil
	}, txn.Named("deposit"), watch)
	if err != nil {
		log.Fatal(err)
	}
	// Output: run 1 of deposit: rows 1, cells 1, bytes 8
}
