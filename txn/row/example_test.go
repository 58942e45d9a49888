package row_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/row"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type User struct {
	ID     string              `row:"key"`
	Email  string              `row:"profile:email"`
	Phone  *string             `row:"profile:phone"` // nil is absent
	Visits int64               `row:"profile:visits"`
	Roles  map[string]struct{} `row:"role:*"` // a cell for each member
}

var users = row.MustTable[User]("users")

func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	err = admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: users.Name(), Families: []string{"profile", "role"}})
	if err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		return users.In(tx).Insert(ctx, User{ID: "bob", Email: "bob@example.com", Roles: map[string]struct{}{"admin": {}}})
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		users := users.In(tx)
		bob, ok, err := users.Get(ctx, "bob")
		if err != nil || !ok {
			return err
		}
		bob.Visits++
		return users.Set(ctx, bob) // writes one cell
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for user, err := range users.At(snapshot).Scan(ctx, nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user.ID, user.Email, user.Phone, user.Visits, user.Roles)
	}
	// Output: bob bob@example.com <nil> 1 map[admin:{}]
}
