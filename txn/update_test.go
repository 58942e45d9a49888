package txn_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestUpdateStops covers the ends of Update other than a commit.
func TestUpdateStops(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	ctx := t.Context()
	conflict := func(runs *int) func(context.Context, *txn.Txn) error {
		return func(ctx context.Context, tx *txn.Txn) error {
			*runs++
			tx.Table("a").Set("r", "f", "q", nil)
			// Another transaction wins each time.
			_, err := env.Client.Update(ctx, set("a", "r"))
			return err
		}
	}
	t.Run("attempts", func(t *testing.T) {
		runs := 0
		_, err := env.Client.Update(ctx, conflict(&runs), txn.MaxAttempts(3), txn.Named("always loses"))
		wantError(t, err, txn.ErrConflict, "3 attempts", "always loses", "a/r/f:q")
		if runs != 3 {
			t.Errorf("%d runs", runs)
		}
		var c *txn.ConflictError
		if !errors.As(err, &c) || c.Reason != txn.ConflictWrite || c.ConflictTS <= c.StartTS || c.Cell.String() != "a/r/f:q" {
			t.Errorf("%+v", c)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		runs := 0
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := env.Client.Update(ctx, conflict(&runs))
		wantError(t, err, context.DeadlineExceeded)
		if runs == 0 {
			t.Error("never ran")
		}
	})
	t.Run("error of the function", func(t *testing.T) {
		mine := errors.New("mine")
		_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("untouched", "f", "q", nil)
			return mine
		})
		if err != mine { //nolint:errorlint // it has to be the very same
			t.Errorf("%v", err)
		}
	})
	t.Run("panic", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
			if err := env.NewClient(txn.Config{}).Close(ctx); err != nil {
				t.Error(err)
			}
		}()
		_, _ = env.Client.Update(ctx, func(context.Context, *txn.Txn) error { panic("boom") })
	})
	s, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Table("a").Get(ctx, "untouched", "f", "q"); ok || err != nil {
		t.Errorf("a failed function wrote: %v, %v", ok, err)
	}
}
