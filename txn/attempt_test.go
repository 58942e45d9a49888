package txn_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// seen returns an option that records the attempts of a transaction.
func seen(all *[]txn.Attempt) txn.TxnOption {
	return txn.OnAttempt(func(_ context.Context, a txn.Attempt) { *all = append(*all, a) })
}

// TestOnAttempt: each run is reported once, with its number, what it wrote, how many requests it
// took, and whether another one follows.
func TestOnAttempt(t *testing.T) {
	failed := errors.New("failed")
	for _, tt := range []struct {
		name string
		do   func(context.Context, *txn.Client, ...txn.TxnOption) error
		want []txn.Attempt
	}{
		{"commit after two conflicts", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
				table := tx.Table("a")
				if _, _, err := table.Get(ctx, "other", "f", "q"); err != nil {
					return err
				}
				table.Set("row", "f", "q", []byte("value"))
				if txn.AttemptOf(ctx) <= 2 {
					_, err := c.Update(context.WithoutCancel(ctx), func(ctx context.Context, tx *txn.Txn) error {
						if n := txn.AttemptOf(ctx); n != 1 {
							t.Errorf("the run of another Update has the number %d", n)
						}
						tx.Table("a").Set("row", "f", "q", nil)
						return nil
					})
					return err
				}
				table.Delete("other", "f", "q")
				return nil
			}, append(opts, txn.Named("x"))...)
			return err
		}, []txn.Attempt{ // a read, and the two of the transaction inside; the conflict needs none
			{Name: "x", Number: 1, Rows: 1, Cells: 1, Bytes: 9, Requests: 3, Err: txn.ErrConflict, Retry: true},
			{Name: "x", Number: 2, Rows: 1, Cells: 1, Bytes: 9, Requests: 3, Err: txn.ErrConflict, Retry: true},
			{Name: "x", Number: 3, CommitTS: 1, Rows: 2, Cells: 2, Bytes: 15, Requests: 4},
		}},
		{"last attempt", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			_, err := c.Update(ctx, func(context.Context, *txn.Txn) error { return &txn.ConflictError{} }, append(opts, txn.MaxAttempts(2))...)
			return err
		}, []txn.Attempt{{Number: 1, Err: txn.ErrConflict, Retry: true}, {Number: 2, Err: txn.ErrConflict}}},
		{"error of the function", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			_, err := c.Update(ctx, func(context.Context, *txn.Txn) error { return failed }, opts...)
			return err
		}, []txn.Attempt{{Number: 1, Err: failed}}},
		{"nothing written", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			_, err := c.Update(ctx, func(context.Context, *txn.Txn) error { return nil }, opts...)
			return err
		}, []txn.Attempt{{Number: 1, CommitTS: 1}}},
		{"Commit", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			tx, err := c.Begin(ctx, opts...)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			tx.Table("a").Lock("row", "f", "q")
			_, err = tx.Commit(ctx)
			return err
		}, []txn.Attempt{{Number: 1, CommitTS: 1, Rows: 1, Cells: 1, Bytes: 4, Requests: 2}}},
		{"Rollback", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			tx, err := c.Begin(ctx, opts...)
			if err == nil {
				tx.Rollback()
			}
			return err
		}, []txn.Attempt{{Number: 1}}},
		{"option that contradicts another one", func(ctx context.Context, c *txn.Client, opts ...txn.TxnOption) error {
			_, err := c.Update(ctx, nil, append(opts, txn.MaxAttempts(-1))...)
			return err
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour})
				if err := c.CheckTable(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				var all []txn.Attempt
				err := tt.do(t.Context(), c, seen(&all))
				if n := len(all); n > 0 && errors.Is(err, failed) != errors.Is(all[n-1].Err, failed) {
					t.Errorf("Update returned %v, and reported %v", err, all[n-1].Err)
				}
				for i := range all {
					if all[i].StartTS == 0 || all[i].CommitTS != 0 && all[i].CommitTS < all[i].StartTS || all[i].Duration < 0 {
						t.Errorf("%+v", all[i])
					}
					all[i].StartTS, all[i].CommitTS = 0, min(all[i].CommitTS, 1)
				}
				if d := cmp.Diff(tt.want, all, cmpopts.EquateErrors(), cmpopts.IgnoreFields(txn.Attempt{}, "Duration")); d != "" {
					t.Error(d)
				}
			})
		})
	}
}

// TestOnAttemptWaits: an attempt reports how long it waited for the lock of another client, and for
// its turn behind a transaction of its own client. If the oracle does not answer, the attempt has
// no start timestamp.
func TestOnAttemptWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		ctx := t.Context()
		var all []txn.Attempt

		dying := txntest.NewFaults(t)
		crash := dying.OnStep(txntest.StepCommit, txntest.Crash)
		victim := env.NewClient(txn.Config{TokenTTL: -1}, dying.DialOptions()...)
		dead, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { _, err := victim.Update(dead, set("a", "r")); ended <- err }()
		<-crash.Fired()
		cancel()
		<-ended
		if _, err := env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			_, _, err := tx.Table("a").Get(ctx, "r", "f", "q")
			return err
		}, seen(&all)); err != nil {
			t.Fatal(err)
		}
		if a := all[len(all)-1]; a.LockWait < 5*time.Second || a.LockWait > a.Duration || a.LatchWait != 0 {
			t.Errorf("an attempt that met a dead client's lock: %+v", a)
		}

		slow := txntest.NewFaults(t)
		hold := slow.OnStep(txntest.StepCommit, txntest.Hold)
		c := env.NewClient(txn.Config{LatchWait: time.Hour}, slow.DialOptions()...)
		go func() { _, err := c.Update(ctx, set("a", "r")); ended <- err }()
		<-hold.Fired()
		all = nil
		go func() { _, err := c.Update(ctx, set("a", "r"), seen(&all)); ended <- err }()
		<-time.After(3 * time.Second)
		hold.Release()
		for range 2 {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		total := time.Duration(0)
		for _, a := range all {
			total += a.LatchWait
		}
		if total < 3*time.Second {
			t.Errorf("attempts that waited for their turn: %+v", all)
		}

		silent := txntest.NewFaults(t)
		lost := silent.OnStep(txntest.StepOracle, txntest.Hold)
		c = env.NewClient(txn.Config{TokenTTL: -1}, silent.DialOptions()...)
		all = nil
		short, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		if _, err := c.Update(short, set("a", "r"), seen(&all)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without the oracle: %v", err)
		}
		<-lost.Fired()
		lost.Release()
		if len(all) != 1 || all[0].StartTS != 0 || all[0].Retry || !strings.Contains(all[0].Err.Error(), "deadline") {
			t.Errorf("without the oracle: %+v", all)
		}
	})
}
