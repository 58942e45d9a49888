package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// firstValue returns the value of a row's first cell.
func firstValue(r bigtable.Row, err error) (string, error) {
	if len(r["f"]) == 0 {
		return "", err
	}
	return string(r["f"][0].Value), err
}

// readsOfOneCell are reads of f:q of a row of table a, of every kind.
var readsOfOneCell = map[string]func(context.Context, *txn.Client, *txn.Snapshot, string) (string, error){
	"get": func(ctx context.Context, _ *txn.Client, s *txn.Snapshot, row string) (string, error) {
		v, _, err := s.Table("a").Get(ctx, row, "f", "q")
		return string(v), err
	},
	"row": func(ctx context.Context, _ *txn.Client, s *txn.Snapshot, row string) (string, error) {
		return firstValue(s.Table("a").ReadRow(ctx, row))
	},
	"scan": func(ctx context.Context, _ *txn.Client, s *txn.Snapshot, row string) (v string, _ error) {
		for r, err := range s.Table("a").ReadRows(ctx, bigtable.PrefixRange(row)) {
			if v, err = firstValue(r, err); err != nil {
				return "", err
			}
		}
		return v, nil
	},
	"latest": func(ctx context.Context, c *txn.Client, _ *txn.Snapshot, row string) (string, error) {
		v, _, err := c.Latest("a").Get(ctx, row, "f", "q")
		return string(v), err
	},
	"first cells": func(ctx context.Context, _ *txn.Client, s *txn.Snapshot, row string) (string, error) {
		return firstValue(s.Table("a").ReadRow(ctx, row, txn.Families("f"), txn.CellsPerRow(1)))
	},
	"first cells of a scan": func(ctx context.Context, _ *txn.Client, s *txn.Snapshot, row string) (v string, _ error) {
		for r, err := range s.Table("a").ReadRows(ctx, bigtable.PrefixRange(row), txn.Families("f"), txn.CellsPerRow(1)) {
			if v, err = firstValue(r, err); err != nil {
				return "", err
			}
		}
		return v, nil
	},
	"observation": func(ctx context.Context, c *txn.Client, _ *txn.Snapshot, row string) (string, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return "", err
		}
		defer tx.Rollback()
		o, err := changes.Observe(ctx, tx, txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"})
		if err != nil || !o.Pending("observer") {
			return "not pending", err
		}
		v, _, err := tx.Table("a").Get(ctx, row, "f", "q") // from the same answer
		return string(v), err
	},
	"previous value": func(ctx context.Context, c *txn.Client, s *txn.Snapshot, row string) (string, error) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return "", err
		}
		defer tx.Rollback()
		o := &changes.Observation{Cell: txn.Cell{Table: "a", Row: row, Family: "f", Qualifier: "q"}, Acks: map[string]tso.Timestamp{"observer": s.ReadTS()}}
		v, _, err := changes.Previous(ctx, tx, o, "observer")
		return string(v), err
	},
	"prefetched": func(ctx context.Context, c *txn.Client, _ *txn.Snapshot, row string) (v string, err error) {
		before := c.Stats().PrefetchedCells
		for _, row := range []string{"w1", "w2", "w3", "w4", "w5", row} {
			tx, err := c.Begin(ctx, txn.Named("page"))
			if err != nil {
				return "", err
			}
			for _, q := range []string{"first", "q"} {
				b, _, err := tx.Table("a").Get(ctx, row, "f", q)
				if v = string(b); err != nil {
					return "", err
				}
			}
			tx.Rollback()
		}
		if c.Stats().PrefetchedCells == before {
			v += ", and nothing was prefetched"
		}
		return v, nil
	},
}

// The newest lock of a column is lock-only, and below it is one of a bulk prewrite that may still
// commit below the reader's timestamp. Reads of every kind must wait for it.
func TestReadBelowHiddenLock(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for name, read := range readsOfOneCell {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, _, _ := newBulkEnv(t, txn.Config{})
				if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "q"}, "observer", false); err != nil {
					t.Fatal(err)
				}
				c := env.NewClient(txn.Config{}) // which knows it
				rows := rowNames(4)
				old := beginSet(t, c, "new", rows...)
				// A lock-only write of one row is locked first.
				slow := txntest.NewFaults(t)
				locker := begin(t, env.NewClient(txn.Config{}, slow.DialOptions()...))
				locker.Table("a").Lock("other", "f", "q")
				for i := range 20 {
					locker.Table("a").Lock(rows[2], "f", fmt.Sprint("column", 10+i))
				}
				locker.Table("a").Lock(rows[2], "f", "q")
				held := slow.OnStep(txntest.StepCommit, txntest.Crash)
				dies, cancel := context.WithCancel(t.Context())
				defer cancel()
				locked := commitInBackground(dies, locker)
				<-held.Fired()
				// The bulk transaction takes its commit_ts beside the verification, which waits for that
				// lock: the owner is alive and younger.
				done := commitInBackground(t.Context(), old)
				synctest.Wait()
				s := takeSnapshot(t, env.Client)
				type answer struct {
					value string
					err   error
				}
				answered := make(chan answer, 1)
				go func() {
					v, err := read(t.Context(), env.Client, s, rows[2])
					answered <- answer{v, err}
				}()
				synctest.Wait()
				if name != "latest" { // which shows what was committed when it began
					select {
					case a := <-answered:
						t.Errorf("the read returned %q, %v while the lock below could commit", a.value, a.err)
						answered <- a
					default:
					}
				}
				slow.Kill()
				cancel()
				<-locked
				advance(time.Minute)
				if o := <-done; o.err != nil {
					t.Fatal(o.err)
				}
				if name == "latest" {
					<-answered
					v, err := read(t.Context(), env.Client, s, rows[2])
					answered <- answer{v, err}
				}
				if a := <-answered; a.err != nil || a.value != "new" {
					t.Errorf("the read returned %q, %v; want new", a.value, a.err)
				}
			})
		})
	}
}

// The newest lock of a column is lock-only. Below it is one of a transaction that has committed, and
// whose client then died. Reads of every kind show that commit.
func TestReadBelowHiddenCommit(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for name, read := range readsOfOneCell {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env, _, _ := newBulkEnv(t, txn.Config{})
				if err := changes.RegisterObserver(t.Context(), env.Client, "a", txn.Column{Family: "f", Qualifier: "q"}, "observer", false); err != nil {
					t.Fatal(err)
				}
				rows := rowNames(4)
				dies := txntest.NewFaults(t)
				older := beginSet(t, env.NewClient(txn.Config{}, dies.DialOptions()...), "new", rows...)
				later := txntest.NewFaults(t)
				locker := begin(t, env.NewClient(txn.Config{}, later.DialOptions()...))
				for _, row := range append([]string{"other"}, rows...) {
					locker.Table("a").Lock(row, "f", "q")
				}
				died := dies.OnStep(txntest.StepSecondaries, txntest.Crash)
				if _, err := older.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				<-died.Fired()
				dies.Kill()
				verifies := later.On("verification", stepOn(txntest.StepRead, rows[0]), txntest.Hold, 1)
				done := commitInBackground(t.Context(), locker)
				<-verifies.Fired()
				synctest.Wait()
				if n := len(stored(t, env, rows[2])[format.LockFamily]); n != 2 {
					t.Errorf("the row has %d locks, want 2", n)
				}
				if v, err := read(t.Context(), env.Client, takeSnapshot(t, env.Client), rows[2]); err != nil || v != "new" {
					t.Errorf("the read returned %q, %v; want new", v, err)
				}
				verifies.Release()
				if o := <-done; !errors.Is(o.err, txn.ErrConflict) {
					t.Errorf("the lock-only transaction: %v, want a conflict", o.err)
				}
			})
		})
	}
}
