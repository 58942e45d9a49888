package emulator_test

import (
	"context"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// A rowList is a range that is read page by page, by any client, in the state of the first page.
type rowList struct {
	table, start, end string // an empty end is none
	reverse           bool
	options           []txn.ReadOption
	at                tso.Timestamp // of the first page, and 0 before
}

// page reads the next rows. more says whether some are left after them.
func (l *rowList) page(ctx context.Context, c *txn.Client, size int) (rows []bigtable.Row, more bool, err error) {
	var at []txn.SnapshotOption
	if l.at != 0 {
		at = append(at, txn.At(l.at))
	}
	snapshot, err := c.Snapshot(ctx, at...)
	if err != nil {
		return nil, false, err
	}
	l.at = snapshot.ReadTS()
	in := bigtable.InfiniteRange(l.start)
	if l.end != "" {
		if l.start >= l.end {
			return nil, false, nil
		}
		in = bigtable.NewRange(l.start, l.end)
	}
	options := append(slices.Clone(l.options), txn.Limit(size+1))
	if l.reverse {
		options = append(options, txn.Reverse())
	}
	for row, err := range snapshot.Table(l.table).ReadRows(ctx, in, options...) {
		if err != nil {
			return nil, false, err
		}
		if len(rows) == size {
			if last := rows[size-1].Key(); l.reverse {
				l.end = last
			} else {
				l.start = last + "\x00"
			}
			return rows, true, nil
		}
		rows = append(rows, row)
	}
	return rows, false, nil
}

// readTables reads cells of several tables at the same time, with one request for each table. Each row
// is read in all columns that the cells name in its table.
func readTables[R txn.Reader](ctx context.Context, table func(name string) R, cells []txn.Cell) (map[txn.Cell][]byte, error) {
	rows, columns := map[string]bigtable.RowList{}, map[string][]txn.Column{}
	for _, c := range cells {
		rows[c.Table] = append(rows[c.Table], c.Row)
		if !slices.Contains(columns[c.Table], c.Column()) {
			columns[c.Table] = append(columns[c.Table], c.Column())
		}
	}
	var mu sync.Mutex
	values := map[txn.Cell][]byte{}
	g, ctx := errgroup.WithContext(ctx)
	for name, keys := range rows {
		g.Go(func() error {
			for row, err := range table(name).ReadRows(ctx, keys, txn.Columns(columns[name]...)) {
				if err != nil {
					return err
				}
				mu.Lock()
				for family, items := range row {
					for _, item := range items {
						values[txn.Cell{Table: name, Row: row.Key(), Family: family, Qualifier: item.Column[len(family)+1:]}] = item.Value
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	return values, g.Wait()
}
