package jobs_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A job that rewrites a column of every row.
func ExampleJob() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	for table, family := range map[string]string{"users": "profile", "jobs": "job"} {
		if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: table, Families: []string{family}}); err != nil {
			log.Fatal(err)
		}
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	_, err = client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for _, name := range []string{"Ann", "Bob"} {
			tx.Table("users").Set(name, "profile", "email", []byte(name+"@Example.com"))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	job := jobs.Job{Name: "lower-case emails", Table: "users", Progress: "jobs", Family: "job"}
	status, err := job.Run(ctx, client, func(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
		tx.Table("users").Set(row.Key(), "profile", "email", bytes.ToLower(row["profile"][0].Value))
		return nil
	})
	if err != nil {
		log.Fatal(err) // Run again to continue
	}
	fmt.Println("rows:", status.Rows, "complete:", status.Complete())
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	email, _, err := snapshot.Table("users").Get(ctx, "Ann", "profile", "email")
	fmt.Println(string(email), err)
	// Output:
	// rows: 2 complete: true
	// ann@example.com <nil>
}
