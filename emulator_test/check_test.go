package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A check by a client with an outdated schema reads the schema again. Before the fix it
// reported the data of a new family as violations.
func TestCheckAfterNewFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		if err := a.CheckTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		env.InitTable(admin.TableSpec{Name: "a", Families: []string{"g"}})
		b := env.NewClient(txn.Config{TokenTTL: -1})
		tx := begin(t, b)
		tx.Table("a").Set("bob", "g", "q", []byte("1"))
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		advance(time.Hour)
		for v, err := range admin.Check(t.Context(), a, "a", nil) {
			t.Errorf("violation: %v, %v", v, err)
		}
	})
}

// A check reports a failed request as an error. Before the fix it reported it as a
// violation.
func TestCheckThatCannotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1, RPCTimeout: time.Second})
		env.CreateTable("b", "f")
		tx := begin(t, env.Client)
		tx.Table("b").Set("bob", "f", "q", []byte("1")) // the primary
		set(tx, "1", "bob")
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := a.CheckTable(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		faults.On("schema of b", step(txntest.StepSchema), txntest.DropRequest, 0)
		failed := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for v, err := range admin.Check(ctx, a, "a", nil) {
			if err == nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("violation: %v, error: %v", v, err)
			}
			failed++
		}
		if failed != 1 {
			t.Errorf("%d errors, want the failed request", failed)
		}
	})
}
