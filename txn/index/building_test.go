package index_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Create fails because two rows have one key. The user deletes (or changes) both rows in one
// transaction, and calls Create again.
func TestBothDuplicatesInOneTransaction(t *testing.T) {
	long.RacedAtNight(t)
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			_, x, c := newEnv(t)
			mustSet(t, c, "1", map[txn.Column]string{email: "k"})
			for i := range 250 { // more than a batch in between
				mustSet(t, c, "2"+string(rune('a'+i/26))+string(rune('a'+i%26)), map[txn.Column]string{email: "x" + string(rune('a'+i/26)) + string(rune('a'+i%26))})
			}
			mustSet(t, c, "3", map[txn.Column]string{email: "k"})
			err := x.Create(t.Context(), c, "email", nil)
			var u *index.UniqueError
			if !errors.As(err, &u) {
				t.Fatal(err)
			}
			// The user repairs both rows in one transaction.
			if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("users").Set("1", "f", "email", []byte("k1"))
				tx.Table("users").Set("3", "f", "email", []byte("k3"))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			create(t, x, c, "email")
			wantCorrect(t, x, c, "email")
			if row, ok, err := x.At(snapshot(t, c)).Get(t.Context(), "email", "k"); ok || err != nil {
				t.Errorf("nobody has key k, and the index says %q %v", row, err)
			}
			if err := set(t.Context(), c, "9", map[txn.Column]string{email: "k"}); err != nil {
				t.Errorf("the key is free: %v", err)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// One of the two gives the key to a third row in the same transaction.
func TestBothDuplicatesMoveTheKey(t *testing.T) {
	long.RacedAtNight(t)
	bad := 0
	for range 12 {
		synctest.Test(t, func(t *testing.T) {
			_, x, c := newEnv(t)
			mustSet(t, c, "1", map[txn.Column]string{email: "k"})
			for i := range 250 {
				mustSet(t, c, "2"+string(rune('a'+i/26))+string(rune('a'+i%26)), map[txn.Column]string{email: "x" + string(rune('a'+i/26)) + string(rune('a'+i%26))})
			}
			mustSet(t, c, "3", map[txn.Column]string{email: "k"})
			if err := x.Create(t.Context(), c, "email", nil); !errors.Is(err, index.ErrUnique) {
				t.Fatal(err)
			}
			if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("users").Set("1", "f", "email", []byte("k1"))
				tx.Table("users").Set("3", "f", "email", []byte("k3"))
				tx.Table("users").Set("9", "f", "email", []byte("k"))
				return nil
			}); err != nil {
				bad++
				return
			}
			create(t, x, c, "email")
			wantCorrect(t, x, c, "email")
		})
	}
	if bad > 0 {
		t.Errorf("%d of 12 transactions that leave the key with one row were refused", bad)
	}
}

// The build has read row 1 with key k, and has not committed its entry. A transaction takes the key away.
func TestBuildBesideRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		mustSet(t, c, "1", map[txn.Column]string{email: "k"})
		faults := txntest.NewFaults(t)
		builder := keeping(env, x, txn.Config{}, faults.DialOptions()...)
		held := faults.On("batch", func(c txntest.Call) bool {
			return c.Step == txntest.StepPrewrite && strings.HasPrefix(c.Row, "email/")
		}, txntest.Hold, 1)
		done := make(chan error, 1)
		go func() { done <- x.Create(context.Background(), builder, "email", nil) }()
		<-held.Fired()
		mustSet(t, c, "1", map[txn.Column]string{email: "-"})
		held.Release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantCorrect(t, x, c, "email")
	})
}
