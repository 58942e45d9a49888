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

// A unique index of e-mail addresses, and an index of orders by customer and time.
func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	for table, family := range map[string]string{"users": "profile", "orders": "order", "indexes": "entry"} {
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
	customer, placed := txn.Column{Family: "order", Qualifier: "customer"}, txn.Column{Family: "order", Qualifier: "placed"}
	indexes, err := index.New("indexes", "entry", // a table and a family for the entries
		index.Index{Name: "users-by-email", Table: "users", Columns: []txn.Column{email}, Unique: true},
		index.Index{Name: "orders-by-customer", Table: "orders", Columns: []txn.Column{customer, placed}},
	)
	if err != nil {
		log.Fatal(err)
	}
	indexes.Keep(client) // in every process
	for _, name := range []string{"users-by-email", "orders-by-customer"} {
		err := indexes.Create(ctx, client, name, nil) // once, while the table is in use
		if err != nil {
			log.Fatal(err)
		}
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
	_, err = client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("orders").Set("7", "order", "customer", []byte("bob"))
		tx.Table("orders").Set("7", "order", "placed", []byte(index.Time(tx.StartTS().Time())))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	user, ok, err := indexes.At(snapshot).Get(ctx, "users-by-email", "bob@example.com")
	fmt.Println(user, ok, err)
	for entry, err := range indexes.At(snapshot).Scan(ctx, "orders-by-customer", index.Query{Prefix: index.Key{"bob"}}) {
		fmt.Println("order", entry.Row, err)
	}
	orders, next, err := indexes.Page(ctx, client, "orders-by-customer", index.Query{Prefix: index.Key{"bob"}}, 50, "")
	fmt.Println("orders:", len(orders), "a second page:", next != "", err)
	// This prints (TestExample checks it):
	// <nil>
	// the address is taken by bob
	// bob true <nil>
	// order 7 <nil>
	// orders: 1 a second page: false <nil>
}
