package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"strings"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/jobs"
)

// docs/applications.md quotes these examples (TestRecipes).

type user struct {
	Email  string
	Visits int64
}

func userOf(row bigtable.Row) (u user, err error) {
	for _, item := range row["profile"] {
		switch item.Column {
		case "profile:email":
			u.Email = string(item.Value)
		case "profile:visits":
			if u.Visits, err = strconv.ParseInt(string(item.Value), 10, 64); err != nil {
				return u, err
			}
		}
	}
	return u, nil
}

func (u user) set(users *txn.Table, id string, old user) {
	if u.Email != old.Email {
		users.Set(id, "profile", "email", []byte(u.Email))
	}
	if u.Visits != old.Visits {
		users.Set(id, "profile", "visits", strconv.AppendInt(nil, u.Visits, 10))
	}
}

// A row as a struct.
func Example_struct() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "users", "profile")
	defer stop()
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		user{Email: "bob@example.com"}.set(tx.Table("users"), "bob", user{})
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		row, err := tx.Table("users").ReadRow(ctx, "bob", txn.Families("profile"))
		if err != nil {
			return err
		}
		old, err := userOf(row) // the zero user if there is no row
		if err != nil {
			return err
		}
		bob := old
		bob.Visits++
		bob.set(tx.Table("users"), "bob", old)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for row, err := range snapshot.Table("users").ReadRows(ctx, nil) {
		if err != nil {
			log.Fatal(err)
		}
		u, err := userOf(row)
		fmt.Println(row.Key(), u, err)
	}
	// Output: bob {bob@example.com 1} <nil>
}

var errToken = errors.New("the page token is damaged, or of another list")

// listOrders returns at most size orders with keys from start to before end ("": to the last one),
// and the token of the next page: "" after the last one.
func listOrders(ctx context.Context, client *txn.Client, start, end string, size int, token string) (rows []bigtable.Row, next string, err error) {
	var at []txn.SnapshotOption
	if token != "" {
		number, after, _ := strings.Cut(token, " ")
		ts, err := tso.ParseTimestamp(number)
		if err != nil || after < start || end != "" && after >= end {
			return nil, "", errToken
		}
		at, start = append(at, txn.At(ts)), after+"\x00"
	}
	snapshot, err := client.Snapshot(ctx, at...)
	if err != nil {
		return nil, "", err
	}
	for row, err := range snapshot.Table("orders").ReadRows(ctx, bigtable.NewRange(start, end), txn.Limit(size+1)) {
		if err != nil {
			return nil, "", err
		}
		if len(rows) == size {
			return rows, fmt.Sprint(snapshot.ReadTS(), " ", rows[size-1].Key()), nil
		}
		rows = append(rows, row)
	}
	return rows, "", nil
}

// A list, page by page.
func Example_pages() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "orders", "order")
	defer stop()
	write := func(keys ...string) {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			for _, key := range keys {
				tx.Table("orders").Set(key, "order", "item", []byte("book"))
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	write("customer/6/1", "customer/7/1", "customer/7/2", "customer/7/3", "customer/8/1")
	start := "customer/7/"
	for token := ""; ; {
		rows, next, err := listOrders(ctx, client, start, txn.PrefixEnd(start), 2, token)
		if err != nil {
			log.Fatal(err)
		}
		for _, row := range rows {
			fmt.Println(row.Key())
		}
		if token = next; token == "" {
			break
		}
		_, _, err = listOrders(ctx, client, "customer/8/", txn.PrefixEnd("customer/8/"), 2, token)
		fmt.Println("the token in another list:", err)
		write("customer/7/2a") // the list does not show it
	}
	_, token, err := listOrders(ctx, client, "", "", 4, "")
	if err != nil {
		log.Fatal(err)
	}
	rest, _, err := listOrders(ctx, client, "", "", 4, token)
	fmt.Println(len(rest), "of all orders are on the second page", err)
	// Output:
	// customer/7/1
	// customer/7/2
	// the token in another list: the page token is damaged, or of another list
	// customer/7/3
	// 2 of all orders are on the second page <nil>
}

// Cells of several tables, read at once.
func Example_severalTables() {
	ctx := context.Background()
	client, stop := clientWithTables(ctx, map[string]string{"users": "profile", "orders": "order"})
	defer stop()
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("users").Set("bob", "profile", "email", []byte("bob@example.com"))
		tx.Table("orders").Set("7", "order", "total", []byte("30"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		var email, total []byte
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() (err error) {
			email, _, err = tx.Table("users").Get(ctx, "bob", "profile", "email")
			return err
		})
		g.Go(func() (err error) {
			total, _, err = tx.Table("orders").Get(ctx, "7", "order", "total")
			return err
		})
		if err := g.Wait(); err != nil {
			return err
		}
		fmt.Printf("%s pays %s\n", email, total)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: bob@example.com pays 30
}

// A job that sends its requests with another app profile, for example one with a low priority.
func Example_appProfile() {
	ctx := context.Background()
	bt, err := bigtable.NewClientWithConfig(ctx, "project", "instance", bigtable.ClientConfig{AppProfile: "batch"})
	if err != nil {
		log.Fatal(err)
	}
	defer bt.Close()
	batch, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer batch.Close(ctx)
	job := jobs.Job{Name: "lower-case emails", Table: "users", Progress: "jobs", Family: "job"}
	status, err := job.Run(ctx, batch, func(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
		tx.Table("users").Set(row.Key(), "profile", "email", bytes.ToLower(row["profile"][0].Value))
		return nil
	})
	fmt.Println(status.Rows, err)
}
