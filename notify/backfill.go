package notify

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// backfillBatch is how many cells Backfill notifies with one request.
const backfillBatch = 500

// BackfillConfig configures [Backfill]. Table and Column have to be set.
type BackfillConfig struct {
	Table string
	// Column is a column, or a pattern.
	Column txn.Column
	// Rows defaults to all rows.
	Rows bigtable.RowSet
	// Progress, if set, is called after each batch with the number of cells notified so far, and
	// the last of their rows.
	Progress func(cells int, row string)
}

// Backfill notifies every cell of a column that has a value, and returns how many it notified. Use it
// after you have registered an observer for a column with data. An observer that has acknowledged a
// cell's newest change does not run again.
//
// Clients that are running notice the registration late, and the changes that they commit
// before that have no notifications. Backfill covers those changes too if it runs late
// enough: a minute after the registration.
//
// After an error the cells up to the last row of Progress are notified, and another call may begin
// with it. Backfill fails with txn.ErrSchema if the column has no observer. If observers of a
// pattern cannot acknowledge changes of some cells, because the names of these are too long,
// Backfill notifies all others, and then fails with txn.ErrLimit.
func Backfill(ctx context.Context, client *txn.Client, cfg BackfillConfig) (cells int, err error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	var observed []changes.ObservedColumn
	if cfg.Column.IsPattern() {
		if observed, err = changes.ObservedColumns(ctx, client, cfg.Table); err != nil {
			return 0, err
		}
	}
	tooLong, first := 0, "" // cells
	var batch []txn.Cell
	send := func() error {
		if err := changes.Notify(ctx, client, batch...); err != nil {
			return err
		}
		cells += len(batch)
		if cfg.Progress != nil && len(batch) > 0 {
			cfg.Progress(cells, batch[len(batch)-1].Row)
		}
		batch = batch[:0]
		return nil
	}
	for row, err := range snapshot.Table(cfg.Table).ReadRows(ctx, cfg.Rows, Watched(cfg.Column), txn.KeysOnly()) {
		if err != nil {
			return cells, err
		}
		for family, items := range row {
			for _, item := range items {
				cell := txn.Cell{Table: cfg.Table, Row: row.Key(), Family: family, Qualifier: item.Column[len(family)+1:]}
				if id := changes.CannotAcknowledge(observed, cell); id != "" {
					if tooLong++; tooLong == 1 {
						first = fmt.Sprintf("%s, observer %s", cell, id)
					}
					if _, ok := changes.Watching(observed, cfg.Table, cell.Column()); !ok {
						continue
					}
				}
				batch = append(batch, cell)
				if len(batch) == backfillBatch {
					if err := send(); err != nil {
						return cells, err
					}
				}
			}
		}
	}
	if err = send(); err == nil && tooLong > 0 {
		err = format.Limitf("backfill of %s: %d cells have names that are too long for acknowledgments: they can be read and deleted, without runs of the observer. The first is %s", cfg.Column, tooLong, first)
	}
	return cells, err
}

// Watched selects the cells that an observer of a column, or of a pattern, watches.
func Watched(column txn.Column) txn.ReadOption {
	if column.IsPattern() {
		return txn.Qualifiers(column.RealFamily(), column.Qualifier, txn.PrefixEnd(column.Qualifier))
	}
	return txn.Columns(column)
}
