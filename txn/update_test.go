package txn_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestUpdateStops covers the ways in which Update ends without a commit.
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
			t.Errorf("the function ran %d times; want 3", runs)
		}
		var c *txn.ConflictError
		if !errors.As(err, &c) || c.Reason != format.ConflictWrite || c.ConflictTS <= c.StartTS || c.Cell.String() != "a/r/f:q" {
			t.Errorf("the conflict is %+v; want a write of a/r/f:q above the start timestamp", c)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		runs := 0
		ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := env.Client.Update(ctx, conflict(&runs))
		wantError(t, err, context.DeadlineExceeded)
		if runs == 0 {
			t.Error("the function never ran")
		}
	})
	// Before the fix, Update returned "transaction has ended", which its documentation called
	// an error without effects, or ran the function again.
	for name, returns := range map[string]error{"committed inside": nil, "committed inside, conflict": &format.ConflictError{}, "committed inside, error": errors.New("mine")} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			_, err := env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
				runs++
				tx.Table("a").Set("r", "f", "q", nil)
				if _, err := tx.Commit(ctx); err != nil {
					t.Error(err)
				}
				return returns
			})
			wantError(t, err, txn.ErrDone, "the function given to Update called Commit")
			if runs != 1 || errors.Is(err, txn.ErrConflict) {
				t.Errorf("%d runs, %v", runs, err)
			}
			if name == "committed inside, error" {
				wantError(t, err, returns)
			}
		})
	}
	t.Run("contradicting options", func(t *testing.T) {
		for _, opts := range [][]txn.TxnOption{{txn.MaxAttempts(-1)}, {txn.WriteOnly(), txn.Serializable()}} {
			_, err := env.Client.Update(ctx, func(context.Context, *txn.Txn) error { t.Error("the function ran"); return nil }, opts...)
			wantError(t, err, txn.ErrInvalid)
			_, err = env.Client.Begin(ctx, opts...)
			wantError(t, err, txn.ErrInvalid)
		}
	})
	t.Run("error of the function", func(t *testing.T) {
		mine := errors.New("mine")
		_, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("untouched", "f", "q", nil)
			return mine
		})
		if err != mine { //nolint:errorlint // Update must return it unchanged
			t.Errorf("Update returned %v; want the function's own error", err)
		}
	})
	t.Run("panic", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error("Update recovered the function's panic")
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
		t.Errorf("the write of a failed function is there: %v, error %v", ok, err)
	}
}
