package changes_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Run an observer by hand. Applications use package notify, which does this, and
// finds work, retries and parks.
func ExampleObserve() {
	ctx := context.Background()
	client, stop := documents(ctx)
	defer stop()
	column := txn.Column{Family: "text", Qualifier: "raw"}
	if err := changes.RegisterObserver(ctx, client, "docs", column, "counter", false); err != nil {
		log.Fatal(err)
	}
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("docs").Set("readme", "text", "raw", []byte("how to start"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	for n, err := range changes.Notifications(ctx, client, "docs", nil) {
		if err != nil {
			log.Fatal(err)
		}
		_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			seen, err := changes.Observe(ctx, tx, n.Cell)
			if err != nil || !seen.Pending("counter") {
				return err
			}
			docs := tx.Table(n.Cell.Table)
			text, _, err := docs.Get(ctx, n.Cell.Row, n.Cell.Family, n.Cell.Qualifier)
			if err != nil {
				return err
			}
			docs.Set(n.Cell.Row, "text", "length", fmt.Append(nil, len(text)))
			changes.Acknowledge(tx, seen, "counter")
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	for o, err := range changes.Observations(ctx, client, "docs", nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(o.Cell, "acknowledged by all:", o.Acknowledged())
		if err := changes.ClearNotifications(ctx, client, changes.Cleared{Cell: o.Cell, UpTo: o.KnownUpTo()}); err != nil {
			log.Fatal(err)
		}
	}
	// Output: docs/readme/text:raw acknowledged by all: true
}

func documents(ctx context.Context) (*txn.Client, func()) {
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "docs", Families: []string{"text"}}); err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return client, func() {
		_ = client.Close(ctx)
		stop()
	}
}
