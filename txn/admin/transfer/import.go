package transfer

import (
	"context"
	"iter"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

const (
	// parallelBatches is how many transactions are under way at a time.
	parallelBatches = 4
	// batchBytes bounds a transaction beside ImportConfig.Batch.
	batchBytes = 1 << 20
)

// An ImportConfig says how [Import] writes rows.
type ImportConfig struct {
	// Batch is how many rows a transaction writes at most. Defaults to 200.
	Batch int
	// Progress, when set, is called after each transaction. Calls do not overlap.
	Progress func(Imported)
}

// Imported counts rows.
type Imported struct {
	Written   int
	Unchanged int // they were as they should be
}

// Import writes rows into a table, in transactions of some rows each. It does not write
// rows that are as they should be: after an error, import the rows again to continue. Other
// cells stay as they are.
func Import(ctx context.Context, client *txn.Client, table string, rows iter.Seq2[admin.BulkRow, error], cfg ImportConfig) (done Imported, err error) {
	if cfg.Batch <= 0 {
		cfg.Batch = 200
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelBatches)
	var mu sync.Mutex
	send := func(batch []admin.BulkRow) {
		g.Go(func() error {
			written, err := writeBatch(gctx, client, table, batch)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				return err
			}
			done.Written += written
			done.Unchanged += len(batch) - written
			if cfg.Progress != nil {
				cfg.Progress(done)
			}
			return nil
		})
	}
	var batch []admin.BulkRow
	bytes := 0
	for row, rerr := range rows {
		if err = rerr; err != nil || gctx.Err() != nil {
			break
		}
		batch = append(batch, row)
		for _, c := range row.Cells {
			bytes += len(c.Value) + len(c.Qualifier)
		}
		if len(batch) >= cfg.Batch || bytes >= batchBytes {
			send(batch)
			batch, bytes = nil, 0
		}
	}
	if err == nil && gctx.Err() == nil && len(batch) > 0 {
		send(batch)
	}
	if werr := g.Wait(); werr != nil {
		err = werr
	}
	if err == nil {
		err = ctx.Err()
	}
	return done, err
}

// writeBatch writes the rows that are not as they should be, and returns how
// many these were.
func writeBatch(ctx context.Context, c *txn.Client, table string, batch []admin.BulkRow) (written int, err error) {
	_, err = c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		written = 0
		t := tx.Table(table)
		keys := make(bigtable.RowList, len(batch))
		for i, row := range batch {
			keys[i] = row.Row
		}
		there := map[string]bigtable.Row{}
		for row, err := range t.ReadRows(ctx, keys) {
			if err != nil {
				return err
			}
			there[row.Key()] = row
		}
		for _, row := range batch {
			changed := false
			for _, cell := range row.Cells {
				if !holds(there[row.Row], cell) {
					t.Set(row.Row, cell.Family, cell.Qualifier, cell.Value)
					changed = true
				}
			}
			if changed {
				written++
			}
		}
		return nil
	})
	return written, err
}

func holds(row bigtable.Row, cell admin.BulkCell) bool {
	return slices.ContainsFunc(row[cell.Family], func(it bigtable.ReadItem) bool {
		return it.Column == cell.Family+":"+cell.Qualifier && string(it.Value) == string(cell.Value)
	})
}
