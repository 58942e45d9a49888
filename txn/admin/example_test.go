package admin_test

import (
	"context"
	"fmt"
	"log"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A table is made once, before the first client uses it. (In a service, bt and
// btAdmin come from bigtable.NewClient and bigtable.NewAdminClient.)
func ExampleInitTable() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	err = admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "accounts", Families: []string{"bal"}})
	if err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	tables, err := admin.Tables(ctx, client)
	fmt.Println(tables, err)
	// Output: [accounts] <nil>
}

// The consistency check reads a table and changes nothing. Here a plain writer has
// deleted the value that a transaction wrote.
func ExampleCheck() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	err = admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "accounts", Families: []string{"bal"}})
	if err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	_, err = client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn("bal", "usd")
	if err := bt.Open("accounts").Apply(ctx, "bob", m); err != nil {
		log.Fatal(err)
	}

	for violation, err := range admin.Check(ctx, client, "accounts", nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(violation.Cell, violation.Rule)
	}
	// Output: accounts/bob/bal:usd missing data
}

// A table that a service has filled becomes transactional, in place.
func ExampleAdopt() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	// What is there before.
	if err := btAdmin.CreateTable(ctx, "users"); err != nil {
		log.Fatal(err)
	}
	if err := btAdmin.CreateColumnFamily(ctx, "users", "profile"); err != nil {
		log.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set("profile", "name", bigtable.Now(), []byte("Ann"))
	if err := bt.Open("users").Apply(ctx, "ann", m); err != nil {
		log.Fatal(err)
	}

	cfg := admin.AdoptConfig{Table: "users", WholeScan: true}
	plan, err := admin.PlanAdoption(ctx, btAdmin, bt, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, reason := range plan.Refusals {
		fmt.Println(reason)
	}
	if err := admin.Adopt(ctx, btAdmin, bt, cfg, plan); err != nil {
		log.Fatal(err)
	}

	client, err := txn.NewClient(ctx, bt, txn.Config{Admin: btAdmin})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	name, _, err := snapshot.Table("users").Get(ctx, "ann", "profile", "name")
	fmt.Printf("%d row read; ann is %s, %v\n", plan.Rows, name, err)
	// Output: 1 row read; ann is Ann, <nil>
}

// A new table is filled before it is used.
func ExampleBulkLoad() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "words", Families: []string{"f"}}); err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	// Any iterator will do, a file's or another database's, in order of row keys.
	rows := func(yield func(admin.BulkRow, error) bool) {
		for _, word := range []string{"ant", "bee", "cat"} {
			if !yield(admin.BulkRow{Row: word, Cells: []admin.BulkCell{{Family: "f", Qualifier: "length", Value: []byte("3")}}}, nil) {
				return
			}
		}
	}
	report, err := admin.BulkLoad(ctx, client, "words", rows, admin.BulkConfig{})
	fmt.Println(report.Rows, "rows", err)
	// Output: 3 rows <nil>
}
