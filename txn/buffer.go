package txn

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A buffer holds a transaction's writes until commit (paper §2.2: calls to Set are buffered
// until commit time). The last write of a cell counts. A lock never replaces a put or
// delete.
type buffer struct {
	mu     sync.Mutex
	rows   map[string]map[string]map[Column]*store.Write // by table and row key
	first  *store.Write                                  // the first cell written: the primary
	notify map[Cell]struct{}                             // weak notifications
	err    error                                         // the first invalid call
	sealed bool                                          // the transaction has ended
}

func (b *buffer) set(cell Cell, kind format.Kind, value []byte) {
	b.add(cell, format.CheckCell(cell), kind, value, false)
}

// addNotification buffers a weak notification, under the same conditions as add.
func (b *buffer) addNotification(cell Cell) {
	err := format.CheckCell(cell)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil || b.sealed:
	case err != nil:
		b.err = err
	default:
		if b.notify == nil {
			b.notify = map[Cell]struct{}{}
		}
		b.notify[cell] = struct{}{}
	}
}

// promote buffers a lock-only write of a cell that was read.
func (b *buffer) promote(cell Cell) { b.add(cell, format.CheckCell(cell), format.KindLock, nil, true) }

// add buffers a write of a cell whose check returned err. It ignores every call after an
// invalid one, which Commit reports, and after the transaction's end.
func (b *buffer) add(cell Cell, err error, kind format.Kind, value []byte, promoted bool) {
	if err == nil {
		err = format.CheckValue(cell, value)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil || b.sealed {
		return
	}
	if err != nil {
		b.err = err
		return
	}
	cols := b.row(cell.Table, cell.Row)
	w := cols[cell.Column()]
	switch {
	case w == nil:
		w = &store.Write{Cell: cell, Promoted: promoted}
		cols[cell.Column()] = w
		if b.first == nil {
			b.first = w
		}
	case kind == format.KindLock:
		w.Promoted = w.Promoted && promoted
		return
	}
	w.Kind, w.Value, w.Promoted = kind, bytes.Clone(value), promoted
}

func (b *buffer) row(table, row string) map[Column]*store.Write {
	if b.rows == nil {
		b.rows = map[string]map[string]map[Column]*store.Write{}
	}
	rows := b.rows[table]
	if rows == nil {
		rows = map[string]map[Column]*store.Write{}
		b.rows[table] = rows
	}
	cols := rows[row]
	if cols == nil {
		cols = map[Column]*store.Write{}
		rows[row] = cols
	}
	return cols
}

// writes calls yield with the puts and deletes, as of now; a delete's value is nil.
func (b *buffer) writes(yield func(Cell, []byte) bool) {
	var all []store.Write
	b.mu.Lock()
	for _, rows := range b.rows {
		for _, cols := range rows {
			for _, w := range cols {
				if w.Kind != format.KindLock {
					all = append(all, *w)
				}
			}
		}
	}
	b.mu.Unlock()
	for _, w := range all {
		if w.Kind != format.KindDelete && w.Value == nil {
			w.Value = []byte{}
		}
		if !yield(w.Cell, w.Value) {
			return
		}
	}
}

// get returns the put or delete that the transaction buffered for a cell. ok is false if it
// buffered none, or only a lock.
func (b *buffer) get(cell Cell) (kind format.Kind, value []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.rows[cell.Table][cell.Row][cell.Column()]
	if w == nil || w.Kind == format.KindLock {
		return 0, nil, false
	}
	return w.Kind, bytes.Clone(w.Value), true
}

// An overlay is a copy of the buffered puts and deletes of some rows of one table. A scan
// applies it to the rows that it reads.
type overlay struct {
	rows map[string][]store.Write
	keys []string // the keys of rows, ascending
}

// overlay copies the puts and deletes of the rows that in accepts, in the columns of sel. A
// scan sees the buffer as it was when the scan began.
func (b *buffer) overlay(table string, in func(row string) bool, sel store.Selection) *overlay {
	o := &overlay{rows: map[string][]store.Write{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	for row, cols := range b.rows[table] {
		if !in(row) {
			continue
		}
		for c, w := range cols {
			if w.Kind != format.KindLock && sel.Has(c) {
				o.rows[row] = append(o.rows[row], *w)
			}
		}
		if len(o.rows[row]) > 0 {
			o.keys = append(o.keys, row)
		}
	}
	slices.Sort(o.keys)
	return o
}

// apply returns a row as read from Bigtable with the buffered writes of that row applied, or
// nil if no cell is left.
func (o *overlay) apply(key string, row bigtable.Row) bigtable.Row {
	writes := o.rows[key]
	if len(writes) == 0 {
		return row
	}
	out := bigtable.Row{}
	for family, items := range row {
		out[family] = slices.Clone(items)
	}
	for _, w := range writes {
		items := out[w.Cell.Family]
		i, found := slices.BinarySearchFunc(items, w.Cell.Column().Key(), func(it bigtable.ReadItem, c string) int {
			return strings.Compare(it.Column, c)
		})
		item := bigtable.ReadItem{Row: key, Column: w.Cell.Column().Key(), Value: bytes.Clone(w.Value)}
		switch {
		case w.Kind == format.KindDelete && found:
			items = slices.Delete(items, i, i+1)
		case w.Kind == format.KindDelete:
		case found:
			items[i] = item
		default:
			items = slices.Insert(items, i, item)
		}
		if len(items) == 0 {
			delete(out, w.Cell.Family)
		} else {
			out[w.Cell.Family] = items
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// wrote reports whether the transaction itself put or deleted a cell.
func (b *buffer) wrote(cell Cell) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.rows[cell.Table][cell.Row][cell.Column()]
	return w != nil && w.Kind != format.KindLock
}

// next returns the first remaining row key in the direction of the scan.
func (o *overlay) next(reverse bool) string {
	if reverse {
		return o.keys[len(o.keys)-1]
	}
	return o.keys[0]
}

// dropNext removes the row key that next returns.
func (o *overlay) dropNext(reverse bool) {
	if reverse {
		o.keys = o.keys[:len(o.keys)-1]
	} else {
		o.keys = o.keys[1:]
	}
}

// notifications checks the transaction's weak notifications and returns their cells, sorted.
func (b *buffer) notifications(ctx context.Context, s *store.Store) ([]Cell, error) {
	var cells []Cell
	for cell := range b.notify {
		if err := store.CheckNotifiable(ctx, s, cell, true); err != nil {
			return nil, err
		}
		cells = append(cells, cell)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return strings.Compare(a.String(), b.String()) })
	return cells, nil
}
