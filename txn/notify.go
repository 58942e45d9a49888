package txn

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// checkNotifiable refuses cells whose column nobody observes, or, if weak, that
// is not for weak notifications.
func checkNotifiable(ctx context.Context, s *store, cell Cell, weak bool) error {
	if err := checkCell(cell); err != nil {
		return err
	}
	t, err := s.table(ctx, cell.Table)
	if err != nil {
		return err
	}
	known, err := t.schema.fresh(ctx)
	if err != nil {
		return err
	}
	o, ok := known.observed[cell.Column()]
	if !ok || (weak && !o.weak) {
		// It may have been registered since the schema was read.
		if known, err = t.schema.newer(ctx, known); err != nil {
			return err
		}
		o, ok = known.observed[cell.Column()]
	}
	switch {
	case !ok:
		return fmt.Errorf("txn: notification of %s: %w: no observer is registered for column %s of table %q", cell, ErrSchema, cell.Column(), cell.Table)
	case weak && !o.weak:
		return fmt.Errorf("txn: notification of %s: %w: column %s is not for weak notifications: its observers run when it is written", cell, ErrSchema, cell.Column())
	}
	return nil
}

// writeNotifications sets notify cells at ts.
func writeNotifications(ctx context.Context, s *store, cells []Cell, ts tso.Timestamp, value []byte) error {
	byTable := map[string][]rowMutation{}
	for _, cell := range cells {
		m := bigtable.NewMutation()
		m.Set(NotifyFamily, cell.Column().key(), ts.Cell(), value)
		byTable[cell.Table] = append(byTable[cell.Table], rowMutation{row: cell.Row, mut: m, ops: 1})
	}
	return s.mutate(ctx, byTable)
}
