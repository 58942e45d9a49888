// Package many reads cells of several rows and tables at once.
//
//	values, err := many.Get(ctx, tx.Table,
//		txn.Cell{Table: "users", Row: "bob", Family: "profile", Qualifier: "email"},
//		txn.Cell{Table: "orders", Row: "7", Family: "order", Qualifier: "total"},
//	)
package many

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// MaxCells is how many cells one call of Get may read.
const MaxCells = 10_000

// Values are the values that exist. An absent cell is missing; an empty value is not nil.
type Values map[txn.Cell][]byte

// Get reads cells. table is the method Table of a transaction or a snapshot, so all values are
// of its timestamp, and those of a transaction contain its own writes. Get sends one request for
// each table, all at once. A request reads each of its rows in all columns that cells of the
// table name; in a Serializable transaction, Get locks all of these. If one table fails, Get
// returns its error and no values.
func Get[R txn.Reader](ctx context.Context, table func(name string) R, cells ...txn.Cell) (Values, error) {
	if len(cells) > MaxCells {
		return nil, fmt.Errorf("many: %w: %d cells; one call can read %d", txn.ErrLimit, len(cells), MaxCells)
	}
	values := Values{}
	wanted := make(map[txn.Cell]bool, len(cells))
	rows, columns := map[string]map[string]bool{}, map[string]map[txn.Column]bool{}
	for _, c := range cells {
		if err := format.CheckCell(c); err != nil {
			return nil, fmt.Errorf("many: %w", err)
		}
		if rows[c.Table] == nil {
			rows[c.Table], columns[c.Table] = map[string]bool{}, map[txn.Column]bool{}
		}
		wanted[c], rows[c.Table][c.Row], columns[c.Table][c.Column()] = true, true, true
	}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	for name, keys := range rows {
		var list bigtable.RowList
		for key := range keys {
			list = append(list, key)
		}
		slices.Sort(list)
		var cols []txn.Column
		for c := range columns[name] {
			cols = append(cols, c)
		}
		g.Go(func() error {
			for row, err := range table(name).ReadRows(gctx, list, txn.Columns(cols...)) {
				if err != nil {
					return fmt.Errorf("many: table %q: %w", name, err)
				}
				mu.Lock()
				for family, items := range row {
					for _, item := range items {
						c := txn.Cell{Table: name, Row: row.Key(), Family: family, Qualifier: item.Column[len(family)+1:]}
						if wanted[c] {
							values[c] = append([]byte{}, item.Value...)
						}
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return values, nil
}
