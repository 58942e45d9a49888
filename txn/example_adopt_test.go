package txn_test

import (
	"context"
	"fmt"
	"log"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"

	txnadmin "github.com/percolator-bigtable/percolator/txn/admin"
)

// A table that a service has filled becomes transactional, in place.
func ExampleAdopt() {
	ctx := context.Background()
	bt, admin, stop := emulator(ctx)
	defer stop()

	// What is there before.
	if err := admin.CreateTable(ctx, "users"); err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "users", "profile"); err != nil {
		log.Fatal(err)
	}
	m := bigtable.NewMutation()
	m.Set("profile", "name", bigtable.Now(), []byte("Ann"))
	if err := bt.Open("users").Apply(ctx, "ann", m); err != nil {
		log.Fatal(err)
	}

	cfg := txnadmin.AdoptConfig{Table: "users", WholeScan: true}
	plan, err := txnadmin.PlanAdoption(ctx, admin, bt, cfg)
	if err != nil {
		log.Fatal(err)
	}
	for _, reason := range plan.Refusals {
		fmt.Println(reason)
	}
	if err := txnadmin.Adopt(ctx, admin, bt, cfg, plan); err != nil {
		log.Fatal(err)
	}

	client, err := txn.NewClient(ctx, bt, txn.Config{Admin: admin})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	name, _, err := snapshot.Table("users").Get(ctx, "ann", "profile", "name")
	fmt.Printf("%d row looked at; ann is %s, %v\n", plan.Rows, name, err)
	// Output: 1 row looked at; ann is Ann, <nil>
}

// A new table is filled before it is used.
func ExampleTables() {
	ctx := context.Background()
	bt, admin, stop := emulator(ctx)
	defer stop()
	if err := txnadmin.InitTable(ctx, admin, bt, "", txnadmin.TableSpec{Name: "words", Families: []string{"f"}}); err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	// Any iterator will do, a file's or another database's, in order of row keys.
	rows := func(yield func(txnadmin.BulkRow, error) bool) {
		for _, word := range []string{"ant", "bee", "cat"} {
			if !yield(txnadmin.BulkRow{Row: word, Cells: []txnadmin.BulkCell{{Family: "f", Qualifier: "length", Value: []byte("3")}}}, nil) {
				return
			}
		}
	}
	report, err := txnadmin.BulkLoad(ctx, client, "words", rows, txnadmin.BulkConfig{})
	fmt.Println(report.Rows, "rows", err)
	// Output: 3 rows <nil>
}
