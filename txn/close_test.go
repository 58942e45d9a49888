package txn_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestDoneAndClosed uses a transaction after its end, and a client after Close.
func TestDoneAndClosed(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t)
	env.CreateTable("a", "f")
	c := env.NewClient(txn.Config{})
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	tx.Rollback() // after Commit it does nothing
	_, err = tx.Commit(ctx)
	wantError(t, err, txn.ErrDone)
	_, _, err = tx.Table("a").Get(ctx, "r", "f", "q")
	wantError(t, err, txn.ErrDone)
	for _, err := range tx.Table("a").ReadRows(ctx, nil) {
		wantError(t, err, txn.ErrDone)
	}

	snapshot, err := c.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := snapshot.Table("a").Get(ctx, "r", "f", "q"); err != nil {
		t.Fatal(err)
	}
	open, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	open.Table("a").Set("r", "f", "q", nil)
	late, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	wantError(t, c.Close(late), context.DeadlineExceeded, "neither committed nor rolled back")
	if err := c.Close(ctx); err != nil {
		t.Errorf("second Close: %v", err)
	}
	// Before the fix, the snapshot could still be read, and Commit returned the oracle's
	// error.
	_, _, err = open.Table("a").Get(ctx, "s", "f", "q")
	wantError(t, err, txn.ErrClosed)
	_, err = open.Commit(ctx)
	wantError(t, err, txn.ErrClosed)
	_, _, err = snapshot.Table("a").Get(ctx, "r", "f", "q")
	wantError(t, err, txn.ErrClosed)
	_, err = snapshot.Table("a").ReadRow(ctx, "r")
	wantError(t, err, txn.ErrClosed)
	for _, err := range snapshot.Table("a").ReadRows(ctx, nil) {
		wantError(t, err, txn.ErrClosed)
	}
	_, err = c.Timestamp(ctx)
	wantError(t, err, txn.ErrClosed)
	wantError(t, c.CheckTable(ctx, "a"), txn.ErrClosed)
	_, err = c.Begin(ctx)
	wantError(t, err, txn.ErrClosed)
	_, err = c.Snapshot(ctx)
	wantError(t, err, txn.ErrClosed)
	_, err = c.Update(ctx, set("a", "r"))
	wantError(t, err, txn.ErrClosed)
	for _, err := range admin.Locks(ctx, c, "a", nil) {
		wantError(t, err, txn.ErrClosed)
	}
}

// TestCloseDrains checks that Close waits for the secondaries of a committed transaction.
func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		held := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for i := range 10 {
				tx.Table("a").Set(fmt.Sprint("r", i), "f", "q", nil)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		<-held.Fired()
		closed := make(chan error)
		go func() { closed <- c.Close(t.Context()) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("Close returned %v while the secondaries were under way", err)
		default:
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, c.Close(ended), context.Canceled, "waiting for another Close")
		held.Release()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		for l, err := range admin.Locks(t.Context(), env.Client, "a", nil) {
			t.Errorf("Close left the lock %v, error %v", l, err)
		}
	})
}

// TestCloseGivesUp closes a client whose Bigtable does not answer any more. Close returns
// when its context ends, says what is left, and leaves no goroutine.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		faults := txntest.NewFaults(t)
		faults.On("secondaries", func(c txntest.Call) bool { return c.Step == txntest.StepSecondaries }, txntest.Crash, 0)
		c := env.NewClient(txn.Config{}, faults.DialOptions()...)
		_, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set("r1", "f", "q", nil)
			tx.Table("a").Set("r2", "f", "q", nil)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begun := time.Now()
		wantError(t, c.Close(ctx), context.DeadlineExceeded, "2 changes")
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("Close took %v; want the 3 s of its context", d)
		}
	})
}

// TestNoLeaks looks for goroutines that a client leaves.
func TestNoLeaks(t *testing.T) {
	ctx := t.Context()
	bt, btAdmin, stop, err := txntest.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := admin.InitTable(ctx, btAdmin, bt, "", admin.TableSpec{Name: "a", Families: []string{"f"}}); err != nil {
		t.Fatal(err)
	}
	before := goleak.IgnoreCurrent()
	for name, run := range map[string]func() error{
		"NewClient fails": func() error {
			_, err := txn.NewClient(ctx, bt, txn.Config{MetadataTable: "none"})
			if !errors.Is(err, txn.ErrNotInitialized) {
				return fmt.Errorf("want ErrNotInitialized: %w", err)
			}
			return nil
		},
		"context is cancelled": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			cctx, cancel := context.WithCancel(ctx)
			_, err = c.Update(cctx, func(ctx context.Context, tx *txn.Txn) error {
				tx.Table("a").Set("r", "f", "q", nil)
				cancel()
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				return fmt.Errorf("want Canceled: %w", err)
			}
			return c.Close(ctx)
		},
		"committed and closed": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			if _, err := c.Update(ctx, set("a", "r")); err != nil {
				return err
			}
			return c.Close(ctx)
		},
		"the caller breaks out of a scan": func() error {
			c, err := txn.NewClient(ctx, bt, txn.Config{})
			if err != nil {
				return err
			}
			s, err := c.Snapshot(ctx)
			if err != nil {
				return err
			}
			for _, err := range s.Table("a").ReadRows(ctx, nil) {
				if err != nil {
					return err
				}
				break
			}
			return c.Close(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(); err != nil {
				t.Fatal(err)
			}
			if err := goleak.Find(before, goleak.IgnoreTopFunction("testing.(*T).Run")); err != nil {
				t.Error(err)
			}
		})
	}
}
