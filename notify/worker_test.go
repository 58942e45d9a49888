package notify_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// copyTo is an observer that writes its cell's value, and a letter, to another
// column of the row.
func copyTo(to column, letter string) notify.Observer {
	return notify.ObserverFunc(func(ctx context.Context, tx *txn.Txn, cell txn.Cell) error {
		v, ok, err := tx.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
		if err != nil {
			return err
		}
		if !ok {
			tx.Table(to.table).Delete(cell.Row, to.Family, to.Qualifier)
			return nil
		}
		tx.Table(to.table).Set(cell.Row, to.Family, to.Qualifier, append(v, letter...))
		return nil
	})
}

func TestChain(t *testing.T) {
	long.RacedAtNight(t)
	for _, noHints := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoHints=%v", noHints), func(t *testing.T) {
			env := txntest.New(t)
			env.CreateTable("docs", "d")
			w, err := notify.NewWorker(env.Client, notify.Config{NoHints: noHints, Finder: &notify.Scanner{MinInterval: time.Millisecond, MaxInterval: 20 * time.Millisecond}})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(w.Handle("first", input.table, input.Column, copyTo(middle, "a")), w.Handle("second", middle.table, middle.Column, copyTo(output, "b"))); err != nil {
				t.Fatal(err)
			}
			for _, col := range []column{input, middle} {
				id := map[column]string{input: "first", middle: "second"}[col]
				if err := changes.RegisterObserver(t.Context(), env.Client, col.table, col.Column, id, false); err != nil {
					t.Fatal(err)
				}
			}
			start(t, w)
			const rows = 50
			for i := range rows {
				if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
					tx.Table("docs").Set("row"+strconv.Itoa(i), "d", "in", []byte(strconv.Itoa(i)))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			asOf, err := notify.Wait(t.Context(), env.Client, notify.WaitConfig{})
			if err != nil {
				t.Fatal(err)
			}
			snapshot, err := env.Client.Snapshot(t.Context(), txn.At(asOf))
			if err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				v, _, err := snapshot.Table("docs").Get(t.Context(), "row"+strconv.Itoa(i), "d", "out")
				if want := strconv.Itoa(i) + "ab"; err != nil || string(v) != want {
					t.Errorf("row%d: %q, %v; want %q", i, v, err, want)
				}
			}
			if s := w.Stats(); s.Committed != 2*rows {
				t.Errorf("%d runs committed, want %d: %+v", s.Committed, 2*rows, s)
			}
		})
	}
}
