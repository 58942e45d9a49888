package notify

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// backfillBatch is how many cells Backfill notifies with one request.
const backfillBatch = 500

// Backfill notifies every cell of a table's column, or of a pattern, that has a value, in the rows rs (nil:
// all rows), and returns how many it notified. Use it after you have registered an
// observer for a column with data. An observer that has acknowledged a cell's newest
// change does not run again.
//
// Clients that are running notice the registration late, and the changes that they commit
// before that have no notifications. Backfill covers those changes too if it runs late
// enough: after the largest Config.SchemaMaxAge of all clients, plus the time that their
// longest commit takes.
//
// progress, if not nil, is called after each batch with the number of cells notified so
// far and the last of their rows. After an error the cells up to that row are notified,
// and another call may begin with it. Backfill fails with txn.ErrSchema if the column has
// no observer.
func Backfill(ctx context.Context, client *txn.Client, table string, column txn.Column, rs bigtable.RowSet, progress func(cells int, row string)) (cells int, err error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	var batch []txn.Cell
	send := func() error {
		if err := changes.Notify(ctx, client, batch...); err != nil {
			return err
		}
		cells += len(batch)
		if progress != nil && len(batch) > 0 {
			progress(cells, batch[len(batch)-1].Row)
		}
		batch = batch[:0]
		return nil
	}
	what := txn.Columns(column)
	if column.IsPattern() {
		what = txn.Qualifiers(column.RealFamily(), column.Qualifier, txn.PrefixEnd(column.Qualifier))
	}
	for row, err := range snapshot.Table(table).ReadRows(ctx, rs, what, txn.KeysOnly()) {
		if err != nil {
			return cells, err
		}
		for family, items := range row {
			for _, item := range items {
				batch = append(batch, txn.Cell{Table: table, Row: row.Key(), Family: family, Qualifier: item.Column[len(family)+1:]})
				if len(batch) == backfillBatch {
					if err := send(); err != nil {
						return cells, err
					}
				}
			}
		}
	}
	return cells, send()
}
