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
	case !ok:
		return fmt.Errorf("percolator: notification of %s: %w: no observer is registered for column %s of table %q; register one with changes.RegisterObserver, or start its worker", cell, format.ErrSchema, cell.Column(), cell.Table)
	case weak && !registration.Weak:
		return fmt.Errorf("percolator: notification of %s: %w: column %s takes no weak notifications: its observers run when a transaction writes it", cell, format.ErrSchema, cell.Column())
	}
	return nil
}

// WriteNotifications sets the notify cells of cells at ts. value is that of all notify cells.
func WriteNotifications(ctx context.Context, s *Store, cells []format.Cell, ts tso.Timestamp, value []byte) error {
	byTable := map[string][]RowMutation{}
	for _, cell := range cells {
		m := bigtable.NewMutation()
		m.Set(format.NotifyFamily, cell.Column().Key(), ts.Cell(), value)
		byTable[cell.Table] = append(byTable[cell.Table], RowMutation{Row: cell.Row, Mut: m, Ops: 1})
	}
	return s.Mutate(ctx, byTable)
}
