package emulator_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// G2-item: plain snapshot isolation allows write skew, which the guarantees say. Lock
// and Serializable prevent it.
func TestWriteSkew(t *testing.T) {
	for _, g := range guards {
		t.Run(g.name, func(t *testing.T) {
			h := newHermitage(t)
			t1, t2 := h.begin(g.opts...), h.begin(g.opts...)
			for _, s := range []*session{t1, t2} {
				if x, y := g.read(s, "x"), g.read(s, "y"); x != "10" || y != "20" {
					t.Errorf("read %s, %s", x, y)
				}
			}
			t1.set("x", "11")
			t2.set("y", "21")
			t1.commit()
			if g.skew {
				t2.commit()
				h.wantFinally("x=11 y=21")
				return
			}
			t2.conflict("x", "y")
			h.wantFinally("x=11 y=20")
		})
	}
}

// The same with cells that do not exist: an absent cell can be locked.
func TestWriteSkewOnAbsentCells(t *testing.T) {
	for _, g := range guards {
		t.Run(g.name, func(t *testing.T) {
			h := newHermitage(t)
			t1, t2 := h.begin(g.opts...), h.begin(g.opts...)
			if v := g.read(t1, "b"); v != "absent" {
				t.Errorf("b is %s", v)
			}
			if v := g.read(t2, "a"); v != "absent" {
				t.Errorf("a is %s", v)
			}
			t1.set("a", "1")
			t2.set("b", "1")
			t1.commit()
			if g.skew {
				t2.commit()
				h.wantFinally("a=1 b=1 x=10 y=20")
				return
			}
			t2.conflict("a", "b")
			h.wantFinally("a=1 x=10 y=20")
		})
	}
}

// A lock-only write changes nothing that a reader sees, and conflicts with every other
// write and lock of its cell.
func TestLockOnlyWrite(t *testing.T) {
	h := newHermitage(t)
	t1, t2, t3 := h.begin(), h.begin(), h.begin()
	t1.table().Lock("x", "f", "q")
	t1.want("x", "10")
	c := t1.commit()
	if c <= t1.tx.StartTS() {
		t.Errorf("a transaction with only locks committed at %d, want a commit_ts above its start_ts %d", c, t1.tx.StartTS())
	}
	t2.table().Lock("x", "f", "q")
	t2.conflict("x")
	t3.set("x", "13")
	t3.conflict("x")
	t4 := h.begin()
	t4.set("x", "14")
	t4.commit()
	h.wantFinally("x=14 y=20")
}

// G2: write skew by predicate. Snapshot isolation allows it. A serializable transaction
// refuses to scan, because it cannot lock a row that does not exist.
func TestWriteSkewByPredicate(t *testing.T) {
	divisible := func(v string) bool { return v == "30" || v == "42" }
	h := newHermitage(t)
	t1, t2 := h.begin(), h.begin()
	t1.wantScan(divisible, "")
	t2.wantScan(divisible, "")
	t1.set("a", "30")
	t2.set("b", "42")
	t1.commit()
	t2.commit()
	h.begin().wantScan(divisible, "a=30 b=42")
}

// A serializable transaction refuses reads that cannot name their cells, and then
// continues.
func TestSerializableRefusesScans(t *testing.T) {
	h := newHermitage(t)
	col := txn.Columns(txn.Column{Family: "f", Qualifier: "q"})
	for name, read := range map[string]func(*txn.Table) error{
		"row": func(tbl *txn.Table) error {
			_, err := tbl.ReadRow(t.Context(), "x")
			return err
		},
		"family": func(tbl *txn.Table) error {
			_, err := tbl.ReadRow(t.Context(), "x", txn.Families("f"))
			return err
		},
		"qualifiers": func(tbl *txn.Table) error {
			_, err := tbl.ReadRow(t.Context(), "x", txn.Qualifiers("f", "q", "r"), txn.CellsPerRow(1))
			return err
		},
		"whole table": func(tbl *txn.Table) error { return rowsError(t, tbl, nil, col) },
		"range":       func(tbl *txn.Table) error { return rowsError(t, tbl, bigtable.NewRange("a", "z"), col) },
		"prefix":      func(tbl *txn.Table) error { return rowsError(t, tbl, bigtable.PrefixRange("x"), col) },
		"ranges": func(tbl *txn.Table) error {
			return rowsError(t, tbl, bigtable.RowRangeList{bigtable.NewRange("a", "z")}, col)
		},
		"list without columns": func(tbl *txn.Table) error { return rowsError(t, tbl, bigtable.RowList{"x"}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := h.begin(txn.Serializable())
			if err := read(s.table()); !errors.Is(err, txn.ErrSerializableScan) {
				t.Errorf("error %v, want ErrSerializableScan", err)
			}
			// The transaction continues.
			s.want("x", "10")
			s.commit()
		})
	}
	s := h.begin(txn.Serializable())
	if err := rowsError(t, s.table(), bigtable.RowList{"x", "y"}, col); err != nil {
		t.Errorf("rows and columns by name: %v", err)
	}
	if r, err := s.table().ReadRow(t.Context(), "x", col); err != nil || len(r["f"]) != 1 {
		t.Errorf("a row's columns by name: %v, %v", r, err)
	}
}

func rowsError(t *testing.T, tbl *txn.Table, rs bigtable.RowSet, opts ...txn.ReadOption) error {
	t.Helper()
	for _, err := range tbl.ReadRows(t.Context(), rs, opts...) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestReadOnlyAnomaly is the anomaly of Fekete, O'Neil and O'Neil ("A read-only
// transaction anomaly under snapshot isolation", 2004). Without the reader, the other
// two transactions are serializable. x and y are a checking and a savings account. The
// withdrawal takes a fee if the sum falls below 0. The report sees a deposit, and so no
// reason for a fee.
func TestReadOnlyAnomaly(t *testing.T) {
	for _, g := range guards {
		t.Run(g.name, func(t *testing.T) {
			h := newHermitage(t)
			zero := h.begin()
			zero.set("x", "0")
			zero.set("y", "0")
			zero.commit()

			withdrawal, deposit := h.begin(g.opts...), h.begin(g.opts...)
			if x, y := g.read(withdrawal, "x"), g.read(withdrawal, "y"); x != "0" || y != "0" {
				t.Errorf("withdrawal sees %s, %s", x, y)
			}
			if y := g.read(deposit, "y"); y != "0" {
				t.Errorf("deposit sees %s", y)
			}
			deposit.set("y", "20")
			deposit.commit()
			report := h.begin()
			report.wantScan(nil, "x=0 y=20")
			withdrawal.set("x", "-11") // 10, and 1 for the overdraft
			if g.skew {
				withdrawal.commit()
				h.wantFinally("x=-11 y=20")
				return
			}
			withdrawal.conflict("y")
			h.wantFinally("x=0 y=20")
		})
	}
}

// A serializable transaction refuses DeleteRow, as it does ReadRow, and DeleteRow
// refuses an empty row key. Before the fix a serializable transaction could miss cells
// that another one added.
func TestSerializableDeleteRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, faults := newFaultyClient(t, txn.Config{TokenTTL: -1})
		tx := begin(t, a, txn.Serializable())
		defer tx.Rollback()
		if err := tx.Table("a").DeleteRow(t.Context(), "cart"); !errors.Is(err, txn.ErrSerializableScan) {
			t.Errorf("serializable: %v, want ErrSerializableScan", err)
		}
		plain := begin(t, a)
		defer plain.Rollback()
		if err := plain.Table("a").DeleteRow(t.Context(), ""); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("empty row key: %v, want ErrInvalid", err)
		}
		if n := faults.Count()[txntest.StepRead]; n != 0 {
			t.Errorf("%d reads were sent", n)
		}
	})
}

// A Lock of a cell does not replace the transaction's own Set or Delete of it, in
// either order.
func TestLockKeepsTheWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := newFaultyClient(t, txn.Config{TokenTTL: -1})
		mustSet(t, a, "0", "deleted")
		_, err := a.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			a := tx.Table("a")
			a.Set("set", "f", "q", []byte("1"))
			a.Lock("set", "f", "q")
			a.Lock("locked", "f", "q")
			a.Set("locked", "f", "q", []byte("2"))
			a.Delete("deleted", "f", "q")
			_, _, err := a.GetForUpdate(ctx, "deleted", "f", "q")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		s := takeSnapshot(t, a)
		wantValue(t, s, "set", "1")
		wantValue(t, s, "locked", "2")
		wantValue(t, s, "deleted", "")
	})
}

// A serializable transaction validates a cell that it has read through Observe and Get: the Get
// makes no request, and locks the cell nevertheless.
func TestSerializableGetAfterObserve(t *testing.T) {
	env := txntest.New(t, txntest.Embedded())
	env.InitTable(observed)
	mustSet(t, env.Client, "1", "bob")
	tx := begin(t, env.Client, txn.Serializable())
	if _, err := changes.Observe(t.Context(), tx, txn.Cell{Table: "a", Row: "bob", Family: "f", Qualifier: "q"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := tx.Table("a").Get(t.Context(), "bob", "f", "q"); err != nil {
		t.Fatal(err)
	}
	mustSet(t, env.Client, "2", "bob")
	tx.Table("a").Set("joe", "f", "z", []byte("because bob is 1"))
	if _, err := tx.Commit(t.Context()); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("%v, want a conflict", err)
	}
}
