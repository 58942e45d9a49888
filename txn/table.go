package txn

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Table is a transaction's view of one table, for reading and writing.
type Table struct {
	View
}

// Set buffers a value for a cell, and copies it. nil and empty are the same, and differ from
// absent. Commit reports a wrong argument (empty row key, value over Bigtable's limit, …),
// and then sends nothing.
func (t *Table) Set(row, family, qualifier string, value []byte) {
	if value == nil {
		value = []byte{}
	}
	t.txn.buffer.Set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, format.KindPut, value)
}

// Delete buffers the deletion of a cell, whether it exists or not.
func (t *Table) Delete(row, family, qualifier string) {
	t.txn.buffer.Set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, format.KindDelete, nil)
}

// Lock buffers a lock-only write of a cell. Its value does not change, but the transaction
// commits only if no other transaction wrote or locked the cell since this one's start.
// Against write skew, lock the cells that a decision was based on. A cell that does not
// exist can be locked too.
func (t *Table) Lock(row, family, qualifier string) {
	t.txn.buffer.Set(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier}, format.KindLock, nil)
}

// Notify buffers a weak notification of a cell. The observers of its column run after the
// transaction commits, and may run even if it does not. The column must be registered
// for weak notifications and cannot be written. Notifications never make transactions
// conflict (paper §2.4). They cost one more round trip, between commit_ts and the commit.
func (t *Table) Notify(row, family, qualifier string) {
	t.txn.buffer.AddNotification(Cell{Table: t.name, Row: row, Family: family, Qualifier: qualifier})
}

// GetForUpdate is Get and, if that succeeds, Lock.
func (t *Table) GetForUpdate(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error) {
	if value, ok, err = t.get(ctx, row, family, qualifier, true); err == nil {
		t.Lock(row, family, qualifier)
	}
	return value, ok, err
}

// DeleteRow reads a row and buffers the deletion of every cell that the transaction sees in
// it. It does not delete cells that concurrent transactions add. In a serializable
// transaction, which would have to notice those, it fails with ErrSerializableScan.
func (t *Table) DeleteRow(ctx context.Context, row string) error {
	r, err := t.ReadRow(ctx, row)
	if err != nil {
		return err
	}
	for _, items := range r {
		for _, item := range items {
			c, _ := format.SplitColumn(item.Column)
			t.Delete(row, c.Family, c.Qualifier)
		}
	}
	return nil
}
