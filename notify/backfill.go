package notify

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// Backfill notifies every cell of an observed column in rows of its table (nil:
// all rows) that has a value, and returns how many it notified. Observers that
// have acknowledged a cell's newest change do not run again. It is for an
// observer that is registered when there is data already, and for the changes
// that clients made before they knew of the registration: call it once the
// largest Config.SchemaMaxAge of all clients has passed since then, and as long as
// their commits may take.
//
// progress, when not nil, is told how many were notified so far. After an error
// it can be called again, from the row that it came to.
func Backfill(ctx context.Context, client *txn.Client, col Column, rs bigtable.RowSet, progress func(cells int, row string)) (cells int, err error) {
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	const batch = 500
	var pending []txn.Cell
	send := func() error {
		if err := changes.Notify(ctx, client, pending...); err != nil {
			return err
		}
		cells += len(pending)
		if progress != nil && len(pending) > 0 {
			progress(cells, pending[len(pending)-1].Row)
		}
		pending = pending[:0]
		return nil
	}
	for row, err := range snapshot.Table(col.Table).ReadRows(ctx, rs, txn.Columns(col.column())) {
		if err != nil {
			return cells, err
		}
		pending = append(pending, txn.Cell{Table: col.Table, Row: row.Key(), Family: col.Family, Qualifier: col.Qualifier})
		if len(pending) == batch {
			if err := send(); err != nil {
				return cells, err
			}
		}
	}
	return cells, send()
}
