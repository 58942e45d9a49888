package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestUpdateStops covers the ways in which Update ends without a commit.
func TestUpdateStops(t *testing.T) {
	long.RacedAtNight(t)
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
	t.Run("one attempt", func(t *testing.T) {
		runs := 0
		_, err := env.Client.Update(ctx, conflict(&runs), txn.MaxAttempts(1))
		wantError(t, err, txn.ErrConflict, "1 attempts")
		if runs != 1 {
			t.Errorf("the function ran %d times; want once", runs)
		}
	})
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
		loses := conflict(&runs)
		ends := expiring{ctx, make(chan struct{})}
		_, err := env.Client.Update(ends, func(ctx context.Context, tx *txn.Txn) error {
			if runs == 3 {
				close(ends.done)
			}
			return loses(ctx, tx)
		})
		wantError(t, err, context.DeadlineExceeded)
		if runs < 3 {
			t.Errorf("the function ran %d times", runs)
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
		for _, opts := range [][]txn.TxnOption{{txn.MaxAttempts(-1)}, {txn.SettleWithin(-1)}} {
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

// TestBeforeCommit: the hook of a client runs before each commit of a transaction that has
// written. It sees the writes, may add more, and its error undoes the transaction.
func TestBeforeCommit(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	runs := 0
	var fail error
	c := env.NewClient(txn.Config{})
	c.BeforeCommit(func(_ context.Context, tx *txn.Txn) error {
		runs++
		for cell, value := range tx.Writes() {
			if (cell.Row == "deleted") != (value == nil) || cell.Row == "locked" {
				t.Errorf("write of %s: %q", cell, value)
			}
			tx.Table("a").Set("copy of "+cell.Row, "f", "q", value)
		}
		if tx.Client() == nil {
			t.Error("a transaction without a client")
		}
		return fail
	})
	update := func() error {
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("put", "f", "q", nil) // an empty value
			tx.Table("a").Delete("deleted", "f", "q")
			tx.Table("a").Lock("locked", "f", "q")
			return nil
		}, txn.MaxAttempts(3))
		return err
	}
	read := func() (all []string) {
		s, err := c.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for row, err := range s.Table("a").ReadRows(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, row.Key())
		}
		return all
	}
	fail = errors.New("refused")
	if err := update(); !errors.Is(err, fail) || runs != 1 || read() != nil {
		t.Errorf("error %v after %d runs, rows %q", err, runs, read())
	}
	fail = fmt.Errorf("again: %w", txn.ErrConflict)
	if err := update(); !errors.Is(err, fail) || runs != 4 || read() != nil {
		t.Errorf("error %v after %d runs, rows %q", err, runs, read())
	}
	fail = nil
	if err := update(); err != nil || runs != 5 || strings.Join(read(), ", ") != "copy of deleted, copy of put, put" {
		t.Errorf("error %v after %d runs, rows %q", err, runs, read())
	}
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(t.Context()); err != nil || runs != 5 {
		t.Errorf("a transaction without writes: %v after %d runs", err, runs)
	}
	if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrDone) || runs != 5 {
		t.Errorf("a second commit: %v after %d runs", err, runs)
	}
}

// TestCommitBefore: a commit at or after its bound fails with a conflict, and leaves nothing.
func TestCommitBefore(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("a", "f")
	for _, tt := range []struct {
		bounds []time.Duration
		fails  bool
	}{{nil, false}, {[]time.Duration{time.Hour}, false}, {[]time.Duration{0}, true}, {[]time.Duration{time.Hour, 0, time.Hour}, true}} {
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("a").Set("r", "f", "q", []byte("v"))
		tx.Table("a").Set("s", "f", "q", []byte("v"))
		for _, b := range tt.bounds {
			tx.CommitBefore(tx.StartTS() + 1 + tso.Timestamp(b.Microseconds()))
		}
		_, err = tx.Commit(t.Context())
		var conflict *txn.ConflictError
		if errors.As(err, &conflict) != tt.fails || tt.fails && !strings.Contains(err.Error(), "too late") {
			t.Errorf("bounds %v: %v", tt.bounds, err)
		}
		if tt.fails {
			if err := env.Bigtable.Open("a").ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
				t.Errorf("bounds %v: a lock of row %s is left", tt.bounds, r.Key())
				return true
			}, bigtable.RowFilter(bigtable.FamilyFilter(format.LockFamily))); err != nil {
				t.Error(err)
			}
		}
	}
}

// A function that begins with a read of a contended cell does not run again: its transaction begins when
// it is its turn.
func TestUpdateBeginsInItsTurn(t *testing.T) {
	for name, read := range map[string]func(context.Context, *txn.Txn) error{
		"read for update": func(ctx context.Context, tx *txn.Txn) error {
			_, _, err := tx.Table("a").GetForUpdate(ctx, "hot", "f", "q")
			return err
		},
		"read": func(ctx context.Context, tx *txn.Txn) error {
			_, _, err := tx.Table("a").Get(ctx, "hot", "f", "q")
			return err
		},
		"columns read": func(ctx context.Context, tx *txn.Txn) error {
			_, err := tx.Table("a").ReadRow(ctx, "hot", txn.Columns(txn.Column{Family: "f", Qualifier: "q"}))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
				// The cell is contended from the first wait on.
				for call := range 3 {
					hold := faults.OnStep(txntest.StepPrewrite, txntest.Hold)
					done := make(chan error, 2)
					go func() {
						_, err := c.Update(t.Context(), set("a", "hot"))
						done <- err
					}()
					<-hold.Fired()
					var runs atomic.Int64
					go func() {
						_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
							runs.Add(1)
							tx.Table("a").Set("mine", "f", fmt.Sprint(call), nil)
							err := read(ctx, tx)
							tx.Table("a").Set("hot", "f", "q", []byte("v"))
							return err
						})
						done <- err
					}()
					synctest.Wait()
					hold.Release()
					if err := errors.Join(<-done, <-done); err != nil {
						t.Error(err)
					}
					if n := runs.Load(); call > 0 && n != 1 {
						t.Errorf("call %d ran %d times", call, n)
					}
				}
			})
		})
	}
}

// expiring is a context whose deadline passes when done is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
