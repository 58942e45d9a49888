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

	// A transaction that reads nothing need not wait for a start timestamp.
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		tx.Table("accounts").Set("bob", "bal", "eur", []byte("3"))
		return nil
	}, txn.WriteOnly())
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
