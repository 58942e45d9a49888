package txn_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/percolator-bigtable/percolator/txn"
)

// A serializable transaction locks what it reads. So of two transactions that each read what the
// other one writes, one fails, and Update runs it again.
func ExampleSerializable() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "rooms", "r")
	defer stop()
	book := func(tx *txn.Txn, room, unlessBooked string) error {
		if _, booked, err := tx.Table("rooms").Get(ctx, unlessBooked, "r", "guest"); err != nil || booked {
			return errors.Join(errors.New("both rooms together are not possible"), err)
		}
		tx.Table("rooms").Set(room, "r", "guest", []byte("Bob"))
		return nil
	}
	first, err := client.Begin(ctx, txn.Serializable())
	if err != nil {
		log.Fatal(err)
	}
	second, err := client.Begin(ctx, txn.Serializable())
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(book(first, "1", "2"), book(second, "2", "1")); err != nil {
		log.Fatal(err)
	}
	_, err = first.Commit(ctx)
	fmt.Println("first:", err)
	_, err = second.Commit(ctx)
	fmt.Println("second: conflict:", errors.Is(err, txn.ErrConflict))
	// Output:
	// first: <nil>
	// second: conflict: true
}

// Without Update, the caller ends the transaction itself, and distinguishes what may be repeated
// from what has an unknown outcome.
func ExampleTxn_Commit() {
	ctx := context.Background()
	client, stop := clientWithTable(ctx, "accounts", "bal")
	defer stop()
	pay := func() error {
		tx, err := client.Begin(ctx)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("7"))
		_, err = tx.Commit(ctx)
		return err
	}
	err := pay()
	for errors.Is(err, txn.ErrConflict) {
		err = pay() // nothing was committed; a new transaction may succeed
	}
	var unknown *txn.UndeterminedError
	if errors.As(err, &unknown) {
		// It may be committed. Store *unknown, and call Settle with it before anything else.
		_, err = client.Settle(ctx, unknown)
	}
	fmt.Println(err)
	// Output:
	// <nil>
}
