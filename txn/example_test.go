package txn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A long read. Garbage collection keeps the snapshot's versions until Release.
func ExampleHold() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "accounts", "bal")
	defer stop()

	snapshot, err := client.Snapshot(ctx, txn.Hold())
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Release()
	for row, err := range snapshot.Table("accounts").ReadRows(ctx, nil) {
		switch {
		case errors.Is(err, txn.ErrTooOld):
			log.Fatal("garbage collection passed the snapshot; a hold ends after a day: ", err)
		case err != nil:
			log.Fatal(err)
		}
		fmt.Println(row.Key())
	}
	status, err := gc.ReadStatus(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", status.Holds[0].OldestTS == snapshot.ReadTS())
	// Output: held: true
}

// A transfer between two accounts. (In a service, bt and btAdmin come from
// bigtable.NewClient and bigtable.NewAdminClient.)
func Example() {
	ctx := context.Background()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()

	// Once, when the tables are set up.
	err = admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "accounts", Families: []string{"bal"}})
	if err != nil {
		log.Fatal(err)
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)
	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table("accounts")
		accounts.Set("bob", "bal", "usd", []byte("10"))
		accounts.Set("joe", "bal", "usd", []byte("2"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table("accounts")
		for row, change := range map[string]int{"bob": -7, "joe": +7} {
			value, _, err := accounts.Get(ctx, row, "bal", "usd")
			if err != nil {
				return err
			}
			balance, err := strconv.Atoi(string(value))
			if err != nil {
				return err
			}
			accounts.Set(row, "bal", "usd", strconv.AppendInt(nil, int64(balance+change), 10))
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
	for row, err := range snapshot.Table("accounts").ReadRows(ctx, nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s has %s\n", row.Key(), row["bal"][0].Value)
	}
	// Output:
	// bob has 3
	// joe has 9
}

// Write skew: each doctor may go off call only while the other one is on call. Each
// transaction locks the cell on which its decision is based, so one of two concurrent
// decisions fails.
func ExampleTable_Lock() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "doctors", "on")
	defer stop()
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("doctors").Set("alice", "on", "call", []byte("yes"))
		tx.Table("doctors").Set("bob", "on", "call", []byte("yes"))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	offCall := func(tx *txn.Txn, who, other string) error {
		value, _, err := tx.Table("doctors").GetForUpdate(ctx, other, "on", "call")
		if err != nil || string(value) != "yes" {
			return fmt.Errorf("%s has to stay: %w", who, err)
		}
		tx.Table("doctors").Delete(who, "on", "call")
		return nil
	}
	first, _ := client.Begin(ctx)
	second, _ := client.Begin(ctx)
	if err := errors.Join(offCall(first, "alice", "bob"), offCall(second, "bob", "alice")); err != nil {
		log.Fatal(err)
	}
	_, err = first.Commit(ctx)
	fmt.Println("alice:", err)
	_, err = second.Commit(ctx)
	fmt.Println("bob: conflict:", errors.Is(err, txn.ErrConflict))
	// Output:
	// alice: <nil>
	// bob: conflict: true
}

// A snapshot of an earlier time shows what was committed until then.
func ExampleAt() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "pages", "contents")
	defer stop()
	write := func(text string) {
		_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("pages").Set("home", "contents", "html", []byte(text))
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	write("old")
	between, err := client.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	write("new")
	snapshot, err := client.Snapshot(ctx, txn.At(between))
	if err != nil {
		log.Fatal(err)
	}
	value, _, err := snapshot.Table("pages").Get(ctx, "home", "contents", "html")
	fmt.Println(string(value), err)
	// Output: old <nil>
}

// If the outcome of a commit is unknown, this process or another one settles it later. The
// deadline of the commit has mostly ended then, so Settle needs a context of its own.
func ExampleClient_Settle() {
	client, stop := clientWithTable(context.Background(), "accounts", "bal")
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // of a request
	defer cancel()
	_, err := client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("10"))
		return nil
	})
	var unknown *txn.UndeterminedError
	if errors.As(err, &unknown) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		status, err := client.Settle(ctx, unknown)
		fmt.Println(status.State, err)
		return
	}
	fmt.Println("known at once:", err)
	// Output: known at once: <nil>
}

func clientWithTable(ctx context.Context, table, family string) (*txn.Client, func()) {
	return clientWithTables(ctx, map[string]string{table: family})
}

// clientWithTables returns a client of tables with one family each.
func clientWithTables(ctx context.Context, families map[string]string) (*txn.Client, func()) {
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for table, family := range families {
		if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: table, Families: []string{family}}); err != nil {
			log.Fatal(err)
		}
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
