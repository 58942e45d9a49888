package index_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A client that does not keep the index has opened the table before the registration. Either its
// write is in the index, or it fails.
func TestBuildWaitsForOldSchemas(t *testing.T) {
	for which, maxAge := range map[string]time.Duration{"default": 0, "an hour": time.Hour} {
		t.Run(which, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, x, c := newEnv(t)
				other := env.NewClient(txn.Config{SchemaMaxAge: maxAge})
				before := map[txn.Column]string{city: "Bern", name: "Bob"}
				mustSet(t, other, "1", before)
				create(t, x, c, "place")
				if err := set(t.Context(), other, "1", map[txn.Column]string{city: "Rome"}); !errors.Is(err, txn.ErrSchema) {
					t.Errorf("a write after the build: %v, want ErrSchema", err)
				}
				wantCorrect(t, x, c, "place")
			})
		})
	}
}

// A commit takes longer than clients rely on a schema, while an index is built.
func TestBuildBesideLongCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, x, c := newEnv(t)
		faults := txntest.NewFaults(t)
		other := env.NewClient(txn.Config{RPCTimeout: time.Hour}, faults.DialOptions()...)
		txntest.Patient(other)
		mustSet(t, other, "1", map[txn.Column]string{city: "Bern", name: "Bob"})
		slow := faults.On("prewrite of 2", func(c txntest.Call) bool { return c.Step == txntest.StepPrewrite && c.Row == "2" }, txntest.Hold, 1)
		done := make(chan error, 1)
		go func() {
			_, err := other.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
				tx.Table("users").Set("1", "f", "city", []byte("Rome"))
				tx.Table("users").Set("2", "f", "email", []byte("x"))
				return nil
			})
			done <- err
		}()
		<-slow.Fired()
		built := make(chan error, 1)
		go func() { built <- x.Create(t.Context(), c, "place", nil) }()
		pause(t.Context(), 75*time.Second) // the build reads row 1, and waits for its lock
		slow.Release()
		if err := <-done; !errors.Is(err, txn.ErrSchema) {
			t.Errorf("the long commit: %v, want ErrSchema", err)
		}
		if err := <-built; err != nil {
			t.Error(err)
		}
		wantCorrect(t, x, c, "place")
	})
}
