package store

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// CheckNotifiable refuses cells whose column nobody observes, or, if weak, that
// is not for weak notifications.
func CheckNotifiable(ctx context.Context, s *Store, cell format.Cell, weak bool) error {
	if err := format.CheckCell(cell); err != nil {
		return err
	}
	t, err := s.Table(ctx, cell.Table)
	if err != nil {
		return err
	}
	known, err := t.Schema.Fresh(ctx)
	if err != nil {
		return err
	}
	o, ok := known.Observed[cell.Column()]
	if !ok || (weak && !o.Weak) {
		// It may have been registered since the schema was read.
		if known, err = t.Schema.Newer(ctx, known); err != nil {
			return err
		}
		o, ok = known.Observed[cell.Column()]
	}
	switch {
	case !ok:
		return fmt.Errorf("txn: notification of %s: %w: no observer is registered for column %s of table %q", cell, format.ErrSchema, cell.Column(), cell.Table)
	case weak && !o.Weak:
		return fmt.Errorf("txn: notification of %s: %w: column %s is not for weak notifications: its observers run when it is written", cell, format.ErrSchema, cell.Column())
	}
	return nil
}

// WriteNotifications sets notify cells at ts.
func WriteNotifications(ctx context.Context, s *Store, cells []format.Cell, ts tso.Timestamp, value []byte) error {
	byTable := map[string][]RowMutation{}
	for _, cell := range cells {
		m := bigtable.NewMutation()
		m.Set(format.NotifyFamily, cell.Column().Key(), ts.Cell(), value)
		byTable[cell.Table] = append(byTable[cell.Table], RowMutation{Row: cell.Row, Mut: m, Ops: 1})
	}
	return s.Mutate(ctx, byTable)
}
