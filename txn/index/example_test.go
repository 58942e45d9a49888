package index_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A unique index of e-mail addresses.
func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	for table, family := range map[string]string{"users": "profile", "indexes": "entry"} {
		if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: table, Families: []string{family}}); err != nil {
			log.Fatal(err)
		}
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	email := txn.Column{Family: "profile", Qualifier: "email"}
	indexes, err := index.New("indexes", "entry", index.Index{Name: "users-by-email", Table: "users", Columns: []txn.Column{email}, Unique: true})
	if err != nil {
		log.Fatal(err)
	}
	indexes.Keep(client) // in every process
	// Once, while the table is in use. It waits until all clients know the index.
	if err := indexes.Create(ctx, client, "users-by-email", nil); err != nil {
		log.Fatal(err)
	}

	register := func(user string) error {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("users").Set(user, "profile", "email", []byte("bob@example.com"))
			return nil
		})
		return err
	}
	fmt.Println(register("bob"))
	var taken *index.UniqueError
	if errors.As(register("robert"), &taken) {
		fmt.Println("the address is taken by", taken.Other)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	user, ok, err := indexes.At(snapshot).Get(ctx, "users-by-email", "bob@example.com")
	fmt.Println(user, ok, err)
	// This prints (TestExample checks it):
	// <nil>
	// the address is taken by bob
	// bob true <nil>
}
