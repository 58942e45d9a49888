package txntest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// deposit is a part of a service, which the test below is about.
func deposit(ctx context.Context, client *txn.Client, account string) error {
	_, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		balance, _, err := tx.Table("accounts").Get(ctx, account, "bal", "usd")
		tx.Table("accounts").Set(account, "bal", "usd", append(balance, '+'))
		return err
	})
	return err
}

// A complete test of a service: it commits once, although Bigtable's answer is lost. Time is
// virtual.
func TestDeposit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("accounts", "bal")
		faults := txntest.NewFaults(t)
		client := env.NewClient(txn.Config{}, faults.DialOptions()...)

		lost := faults.OnStep(txntest.StepCommit, txntest.DropResponse)
		if err := deposit(t.Context(), client, "bob"); err != nil {
			t.Fatal(err)
		}
		<-lost.Fired()
		snapshot, err := env.Client.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if balance, _, err := snapshot.Table("accounts").Get(t.Context(), "bob", "bal", "usd"); err != nil || string(balance) != "+" {
			t.Errorf("balance %q, error %v", balance, err)
		}
	})
}
