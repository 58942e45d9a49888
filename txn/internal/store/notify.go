package store

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// MaxNotifyCells bounds how many notify cells of one column a request reads. Cells
// beyond it are older, and one run of the observer covers them all.
const MaxNotifyCells = 128

// CheckNotifiable returns an error if the cell's column has no observer or, if weak is set,
// does not take weak notifications. The error matches format.ErrSchema.
func CheckNotifiable(ctx context.Context, s *Store, cell format.Cell, weak bool) error {
	if err := format.CheckCell(cell); err != nil {
		return err
	}
	t, err := s.Table(ctx, cell.Table)
	if err != nil {
		return err
	}
	schema, err := t.Schema.Fresh(ctx)
	if err != nil {
		return err
	}
	registration, ok := schema.Registration(cell.Column())
	if !ok || (weak && !registration.Weak) {
		// The observer may have been registered after the schema was read.
		if schema, err = t.Schema.Newer(ctx, schema); err != nil {
			return err
		}
		registration, ok = schema.Registration(cell.Column())
	}
	switch {
	case !ok && schema.checkNames(cell) != nil:
		return schema.checkNames(cell)
	case !ok:
		return fmt.Errorf("percolator: notification of %s: %w: no observer is registered for column %s of table %q; register one with changes.RegisterObserver, or start its worker", cell, format.ErrSchema, cell.Column(), cell.Table)
	case weak && !registration.Weak:
		return fmt.Errorf("percolator: notification of %s: %w: column %s takes no weak notifications: its observers run when a transaction writes it", cell, format.ErrSchema, cell.Column())
	}
	return nil
}

// maxNotifyOps is how many notify cells of a row a mutation sets at most.
const maxNotifyOps = 1000

// WriteNotifications sets the notify cells of cells at ts. value is that of all notify cells. Cells of
// a row that follow each other are set by one mutation: Bigtable would apply several one by one.
func WriteNotifications(ctx context.Context, s *Store, cells []format.Cell, ts tso.Timestamp, value []byte) error {
	byTable := map[string][]RowMutation{}
	for _, cell := range cells {
		muts := byTable[cell.Table]
		if n := len(muts); n == 0 || muts[n-1].Row != cell.Row || muts[n-1].Ops == maxNotifyOps {
			muts = append(muts, RowMutation{Row: cell.Row, Mut: bigtable.NewMutation()})
			byTable[cell.Table] = muts
		}
		last := &muts[len(muts)-1]
		last.Mut.Set(format.NotifyFamily, cell.Column().Key(), ts.Cell(), value)
		last.Ops++
	}
	return s.Mutate(ctx, byTable)
}
