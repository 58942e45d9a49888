package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// wideColumns is large enough that a prewrite names none of the columns.
const wideColumns = 40

func wideColumn(q int) string { return fmt.Sprintf("q%02d", q) }

// setWide sets many columns of a row.
func setWide(tx *txn.Txn, value, row string) {
	for q := range wideColumns {
		tx.Table("a").Set(row, "f", wideColumn(q), []byte(value))
	}
}

// wantWide reads all of them.
func wantWide(t *testing.T, c *txn.Client, row, want string) {
	t.Helper()
	got, err := takeSnapshot(t, c).Table("a").ReadRow(t.Context(), row, txn.Families("f"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, cell := range got["f"] {
		if string(cell.Value) == want {
			n++
		}
	}
	if n != wideColumns {
		t.Errorf("%d columns of row %s are %q, want %d", n, row, want, wideColumns)
	}
}

// TestWideRowIsOneRequest counts the requests for many columns of a row, with short and
// long names.
func TestWideRowIsOneRequest(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	for _, length := range []int{3, 1000} {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		_, err := a.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			for q := range 500 {
				tx.Table("a").Set("row", "f", fmt.Sprintf("%0*d", length, q), nil)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 1 || n[txntest.StepCommit] != 1 {
			t.Errorf("names of %d bytes: requests %v, want one prewrite and one commit", length, n)
		}
		wantNoLocks(t, env.Client)
	}
}

// TestWideRowConflicts has a transaction that writes many columns of a row, and another
// one that writes one of them, in each way that can conflict. Of the two, the later
// fails.
func TestWideRowConflicts(t *testing.T) {
	one := wideColumn(wideColumns / 2)
	for name, inTheWay := range map[string]func(*txn.Txn){
		"write":  func(tx *txn.Txn) { tx.Table("a").Set("row", "f", one, []byte("theirs")) },
		"delete": func(tx *txn.Txn) { tx.Table("a").Delete("row", "f", one) },
		"mark":   func(tx *txn.Txn) { tx.Table("a").Lock("row", "f", one) },
	} {
		for _, wide := range []bool{true, false} { // is the wide transaction the later one?
			t.Run(fmt.Sprintf("%s, wide=%v", name, wide), func(t *testing.T) {
				env, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
				b := env.NewClient(txn.Config{TokenTTL: -1})
				first, second := begin(t, a), begin(t, b)
				setWide(first, "ours", "row")
				inTheWay(second)
				if wide {
					first, second = second, first
				}
				if _, err := first.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				var conflict *txn.ConflictError
				if _, err := second.Commit(t.Context()); !errors.As(err, &conflict) || conflict.Reason != format.ConflictWrite {
					t.Errorf("the later transaction: %v, want a conflict", err)
				} else if conflict.Cell.Qualifier != one {
					t.Errorf("conflict on %s, want %s", conflict.Cell, one)
				}
				env.Check()
			})
		}
	}
}

// A live lock below start_ts is a conflict for a wide row too.
func TestWideRowMeetsLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		held := faults.OnStep(txntest.StepCommit, txntest.Hold)
		older := begin(t, a)
		older.Table("a").Set("row", "f", wideColumn(7), []byte("theirs"))
		done := commitInBackground(t.Context(), older)
		<-held.Fired()
		younger := begin(t, env.Client)
		setWide(younger, "ours", "row")
		_, err := younger.Commit(t.Context())
		if !errors.Is(err, txn.ErrConflict) {
			t.Errorf("commit of a wide row with a live lock in it: %v, want a conflict", err)
		}
		held.Release()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
	})
}

// Records of columns that a wide row's transaction does not write are no conflict. They
// cost one more request, which names the columns.
func TestWideRowBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		other := txntest.NewFaults(t)
		b := env.NewClient(txn.Config{TokenTTL: -1}, other.DialOptions()...)
		tx := begin(t, a)
		setWide(tx, "ours", "row")
		mustSet(t, b, "theirs", "row") // f:q
		held := other.OnStep(txntest.StepCommit, txntest.Hold)
		locked := begin(t, b)
		locked.Table("a").Set("row", "f", "r", []byte("theirs"))
		done := commitInBackground(t.Context(), locked)
		<-held.Fired()
		if _, err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if n := faults.Count(); n[txntest.StepPrewrite] != 2 || n[txntest.StepCommit] != 1 {
			t.Errorf("requests %v, want one more prewrite", n)
		}
		held.Release()
		if o := <-done; o.err != nil {
			t.Error(o.err)
		}
		wantWide(t, env.Client, "row", "ours")
		wantValue(t, takeSnapshot(t, env.Client), "row", "theirs")
	})
}

// If the answer to a wide row's prewrite is lost, the client finds that the prewrite
// was applied. If the prewrite itself is lost, the client sends it again.
func TestWideRowIsTriedAgain(t *testing.T) {
	for name, action := range map[string]txntest.Action{"request": txntest.DropRequest, "response": txntest.DropResponse} {
		t.Run(name, func(t *testing.T) {
			env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
			faults.OnStep(txntest.StepPrewrite, action)
			tx := begin(t, a)
			setWide(tx, "ours", "row")
			if _, err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantWide(t, env.Client, "row", "ours")
			wantNoLocks(t, env.Client)
		})
	}
}

// A wide row's prewrite arrives long after its transaction was rolled back (hazard 1),
// or a second time after it committed (hazard 3). Neither changes anything.
func TestLateWideRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		prewritten := func(c txntest.Call) bool { return c.Step == txntest.StepPrewrite && c.Row == "row" }
		late := faults.On("late", prewritten, txntest.Delay, 1)
		dies := faults.On("dies", prewritten, txntest.Crash, 1)
		tx := begin(t, a)
		setWide(tx, "ours", "row")
		set(tx, "ours", "other")
		ctx, cancel := context.WithCancel(t.Context())
		done := commitInBackground(ctx, tx)
		<-dies.Fired()
		synctest.Wait() // the other row's prewrite is applied now
		faults.Kill()
		cancel()
		<-done
		advance(time.Minute)
		wantValue(t, takeSnapshot(t, env.Client), "other", "") // rolls the transaction back
		late.Release()
		wantNoLocks(t, env.Client)
		if n := len(stored(t, env, "row")["f"]); n > 0 {
			t.Errorf("%d data cells of a transaction that was rolled back", n)
		}
	})
	env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
	echo := faults.OnStep(txntest.StepPrewrite, txntest.Echo)
	tx := begin(t, a)
	setWide(tx, "ours", "row")
	if _, err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	echo.Release()
	wantNoLocks(t, env.Client)
	wantWide(t, env.Client, "row", "ours")
}

// The prewrite of a row whose columns need several predicates locks the columns of every part,
// and finds a conflict in each.
func TestWideRowOfManyParts(t *testing.T) {
	env, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
	qualifier := func(i int) string { return fmt.Sprintf("%02d", i) + strings.Repeat("q", 1000) }
	const columns = 20
	for _, conflicting := range []int{-1, 0, columns - 1} {
		row := fmt.Sprint("row", conflicting)
		tx := begin(t, a)
		for i := range columns {
			tx.Table("a").Set(row, "f", qualifier(i), []byte("1"))
		}
		// After the start, so that the prewrite has to name the columns.
		if _, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("a").Set(row, "f", qualifier(conflicting), []byte("2"))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		faults.Reset()
		_, err := tx.Commit(t.Context())
		if errors.Is(err, txn.ErrConflict) != (conflicting >= 0) || err != nil && conflicting < 0 {
			t.Errorf("conflict in column %d: %v", conflicting, err)
		}
		if n := faults.Count()[txntest.StepPrewrite]; n < 3 && conflicting != 0 {
			t.Errorf("%d prewrites; want the whole row, and several parts", n)
		}
		read, err := takeSnapshot(t, env.Client).Table("a").ReadRow(t.Context(), row)
		want := columns + 1
		if conflicting >= 0 {
			want = 1
		}
		if err != nil || len(read["f"]) != want {
			t.Errorf("conflict in column %d: %d columns, %v; want %d", conflicting, len(read["f"]), err, want)
		}
	}
}
