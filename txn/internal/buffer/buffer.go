// Package buffer holds what a transaction has written and not committed: its writes by row, and
// the overlay through which the transaction reads them.
package buffer

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Buffer holds a transaction's writes until commit (paper §2.2: calls to Set are buffered
// until commit time). The last write of a cell counts. A lock never replaces a put or
// delete.
type Buffer struct {
	mu     sync.Mutex
	rows   map[string]map[string]rowBuffer // by table and row key
	first  *store.Write                    // the first cell written: the primary
	notify map[format.Cell]struct{}        // weak notifications
	err    error                           // the first invalid call
	sealed bool                            // the transaction has ended
}

// Set buffers a write of a cell that an application names.
func (b *Buffer) Set(cell format.Cell, kind format.Kind, value []byte) {
	b.Add(cell, format.CheckCell(cell), kind, value, false)
}

// AddNotification buffers a weak notification, under the same conditions as Add.
func (b *Buffer) AddNotification(cell format.Cell) {
	err := format.CheckCell(cell)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil || b.sealed:
	case err != nil:
		b.err = err
	default:
		if b.notify == nil {
			b.notify = map[format.Cell]struct{}{}
		}
		b.notify[cell] = struct{}{}
	}
}

// Promote buffers a lock-only write of a cell that was read.
func (b *Buffer) Promote(cell format.Cell) {
	b.Add(cell, format.CheckCell(cell), format.KindLock, nil, true)
}

// Add buffers a write of a cell whose check returned err. It ignores every call after an
// invalid one, which Commit reports, and after the transaction's end.
func (b *Buffer) Add(cell format.Cell, err error, kind format.Kind, value []byte, promoted bool) {
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
	w := b.rows[cell.Table][cell.Row].get(cell.Column())
	switch {
	case w == nil:
		w = &store.Write{Cell: cell, Promoted: promoted}
		b.addRow(w)
		if b.first == nil {
			b.first = w
		}
	case kind == format.KindLock:
		w.Promoted = w.Promoted && promoted
		return
	}
	w.Kind, w.Value, w.Promoted = kind, bytes.Clone(value), promoted
}

// A rowBuffer is the writes of one row. Most rows have one: a map would take more memory than all
// the rest of it.
type rowBuffer struct {
	first *store.Write
	more  map[format.Column]*store.Write
}

func (r rowBuffer) get(c format.Column) *store.Write {
	if r.first != nil && r.first.Cell.Column() == c {
		return r.first
	}
	return r.more[c]
}

func (r rowBuffer) all(yield func(*store.Write) bool) {
	if !yield(r.first) {
		return
	}
	for _, w := range r.more {
		if !yield(w) {
			return
		}
	}
}

// addRow adds the first write of a cell.
func (b *Buffer) addRow(w *store.Write) {
	if b.rows == nil {
		b.rows = map[string]map[string]rowBuffer{}
	}
	rows := b.rows[w.Cell.Table]
	if rows == nil {
		rows = map[string]rowBuffer{}
		b.rows[w.Cell.Table] = rows
	}
	switch r := rows[w.Cell.Row]; {
	case r.first == nil:
		rows[w.Cell.Row] = rowBuffer{first: w}
	case r.more == nil:
		rows[w.Cell.Row] = rowBuffer{r.first, map[format.Column]*store.Write{w.Cell.Column(): w}}
	default:
		r.more[w.Cell.Column()] = w
	}
}

// Seal ends the transaction: the buffer ignores every later call.
func (b *Buffer) Seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
}

// IsOpen reports whether the buffer holds a write, no call was invalid, and the transaction has
// not ended.
func (b *Buffer) IsOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.sealed && b.err == nil && len(b.rows) > 0
}

// Err returns what was wrong with the first invalid call.
func (b *Buffer) Err() error { return b.err }

// Primary returns the cell that was written first.
func (b *Buffer) Primary() format.Cell { return b.first.Cell }

// Writes calls yield with the puts and deletes, as of now; a delete's value is nil.
func (b *Buffer) Writes(yield func(format.Cell, []byte) bool) {
	var all []store.Write
	b.mu.Lock()
	for _, rows := range b.rows {
		for _, cols := range rows {
			for w := range cols.all {
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

// Get returns the put or delete that the transaction buffered for a cell. ok is false if it
// buffered none, or only a lock.
func (b *Buffer) Get(cell format.Cell) (kind format.Kind, value []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.rows[cell.Table][cell.Row].get(cell.Column())
	if w == nil || w.Kind == format.KindLock {
		return 0, nil, false
	}
	return w.Kind, bytes.Clone(w.Value), true
}

// Overlay copies the puts and deletes of the rows that in accepts, in the columns of sel. A
// scan sees the buffer as it was when the scan began.
func (b *Buffer) Overlay(table string, in func(row string) bool, sel store.Selection) *Overlay {
	o := &Overlay{rows: map[string][]store.Write{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	for row, cols := range b.rows[table] {
		if in(row) {
			o.add(row, cols, sel)
		}
	}
	slices.Sort(o.keys)
	return o
}

// OverlayRow is Overlay of one row. It takes no longer if the transaction has written many.
func (b *Buffer) OverlayRow(table, row string, sel store.Selection) *Overlay {
	o := &Overlay{rows: map[string][]store.Write{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	if cols, ok := b.rows[table][row]; ok {
		o.add(row, cols, sel)
	}
	return o
}

// Wrote reports whether the transaction itself put or deleted a cell.
func (b *Buffer) Wrote(cell format.Cell) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.rows[cell.Table][cell.Row].get(cell.Column())
	return w != nil && w.Kind != format.KindLock
}

// Notifications checks the transaction's weak notifications and returns their cells, sorted.
func (b *Buffer) Notifications(ctx context.Context, s *store.Store) ([]format.Cell, error) {
	var cells []format.Cell
	for cell := range b.notify {
		if err := store.CheckNotifiable(ctx, s, cell, true); err != nil {
			return nil, err
		}
		cells = append(cells, cell)
	}
	slices.SortFunc(cells, func(a, b format.Cell) int { return strings.Compare(a.String(), b.String()) })
	return cells, nil
}

// WritesNothing reports whether the buffer holds nothing, or only the locks that a
// serializable transaction took for its reads. Without a write, those locks protect
// nothing.
func (b *Buffer) WritesNothing() bool {
	for _, rows := range b.rows {
		for _, cols := range rows {
			for w := range cols.all {
				if !w.Promoted {
					return false
				}
			}
		}
	}
	return true
}

// Group groups the buffered writes by row, the primary's row first. It checks
// everything that can be checked before anything is sent: if Bigtable refuses a mutation
// half-way, it does not undo the first half (hazard 18).
func (b *Buffer) Group(ctx context.Context, st *store.Store, keeps []string) ([]*store.RowWrites, error) {
	n := 0
	for _, rows := range b.rows {
		n += len(rows)
	}
	// The rows share memory, and so do their writes.
	all, slab, writes := make([]*store.RowWrites, 0, n), make([]store.RowWrites, n), make([]*store.Write, 0, n)
	primary := b.first.Cell
	for name, rows := range b.rows {
		tbl, err := st.Table(ctx, name)
		if err != nil {
			return nil, err
		}
		s, err := tbl.Schema.Fresh(ctx)
		if err != nil {
			return nil, err
		}
		for key, cols := range rows {
			first := len(writes)
			for w := range cols.all {
				if !s.HasFamily(w.Cell.Family) {
					// The family may have been added since the schema
					// was read.
					if s, err = tbl.Schema.Newer(ctx, s); err != nil {
						return nil, err
					}
				}
				if err := s.CheckWrite(tbl.Name, w, keeps); err != nil {
					return nil, err
				}
				w.Observed = w.Kind != format.KindLock && s.IsObserved(w.Cell.Column())
				writes = append(writes, w)
			}
			r := &slab[len(all)]
			*r = store.RowWrites{Table: tbl, Row: key, Writes: writes[first:len(writes):len(writes)], Checked: s}
			slices.SortFunc(r.Writes, func(a, b *store.Write) int {
				return strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key())
			})
			if err := r.Check(); err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b *store.RowWrites) int {
		if ap, bp := a.IsRowOf(primary), b.IsRowOf(primary); ap != bp {
			if ap {
				return -1
			}
			return 1
		}
		if c := strings.Compare(a.Table.Name, b.Table.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Row, b.Row)
	})
	return all, nil
}
