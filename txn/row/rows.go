package row

import (
	"bytes"
	"context"
	"iter"
	"reflect"
	"sync"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// maxKnown bounds how many rows a Rows remembers.
const maxKnown = 1000

// A Rows reads and writes the rows of one table in one transaction. Its methods may be called
// concurrently.
type Rows[T any] struct {
	View[T]
	writes *txn.Table

	mu    sync.Mutex
	known map[string]state
}

// A state is what the application knows of a row: what it read, or wrote last. The cells are
// as encode makes them of what decode returned. So Set does not write a cell whose stored
// form only differs from the one that it would write, as JSON with unknown fields does.
type state struct {
	exists bool
	cells  cells
}

// Get reads a row, and remembers it for Set.
func (r *Rows[T]) Get(ctx context.Context, key string) (value T, ok bool, err error) {
	if value, ok, err = r.View.Get(ctx, key); err == nil {
		_, err = r.remember(key, ok, value)
	}
	return value, ok && err == nil, err
}

// Scan is [View.Scan], and remembers rows for Set, at most 1,000 in a transaction.
func (r *Rows[T]) Scan(ctx context.Context, rs bigtable.RowSet, opts ...txn.ReadOption) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for value, err := range r.View.Scan(ctx, rs, opts...) {
			if err == nil {
				_, err = r.remember(r.table.layout.keyOf(reflect.ValueOf(value)), true, value)
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// Set writes the cells in which value differs from the row as Get, Scan or Set last returned
// or wrote it in this transaction, and deletes those that value lacks. If it was neither
// read nor written, Set reads it first. Of a row that does not exist, Set writes every cell.
//
// Transactions that change different fields of a row do not conflict.
func (r *Rows[T]) Set(ctx context.Context, value T) error {
	key, all, err := r.table.layout.encode(reflect.ValueOf(value))
	if err != nil {
		return err
	}
	old, err := r.stateOf(ctx, key)
	if err != nil {
		return err
	}
	r.write(key, old, all)
	return nil
}

// Insert writes a row that must not exist. If it does, the error matches [ErrExists], and
// nothing is written. Of two transactions that insert a row at the same time, one gets a
// conflict.
func (r *Rows[T]) Insert(ctx context.Context, value T) error {
	key, all, err := r.table.layout.encode(reflect.ValueOf(value))
	if err != nil {
		return err
	}
	old, err := r.stateOf(ctx, key)
	switch {
	case err != nil:
		return err
	case old.exists:
		return existsError(r.table.layout, key)
	}
	first := r.table.layout.fields[0].column
	r.writes.Lock(key, first.Family, first.Qualifier) // also if value has no such cell
	r.write(key, old, all)
	return nil
}

// Put writes every cell of value without reading the row. It deletes the cell of each field that is nil. It leaves members of maps
// that value does not have.
func (r *Rows[T]) Put(value T) error {
	l := r.table.layout
	key, all, err := l.encode(reflect.ValueOf(value))
	if err != nil {
		return err
	}
	for _, f := range l.fields {
		if _, present := all[f.column]; !present && !f.members {
			r.writes.Delete(key, f.column.Family, f.column.Qualifier)
		}
	}
	for c, data := range all {
		r.writes.Set(key, c.Family, c.Qualifier, data)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, key) // members are unknown
	return nil
}

// Delete deletes every cell of a row, those that T does not have included. It reads the row.
func (r *Rows[T]) Delete(ctx context.Context, key string) error {
	if err := r.writes.DeleteRow(ctx, key); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(key, state{})
	return nil
}

func (r *Rows[T]) write(key string, old state, all cells) {
	for c, data := range all {
		if was, present := old.cells[c]; !present || !bytes.Equal(was, data) {
			r.writes.Set(key, c.Family, c.Qualifier, data)
		}
	}
	for c := range old.cells {
		if _, present := all[c]; !present {
			r.writes.Delete(key, c.Family, c.Qualifier)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(key, state{true, all})
}

// stateOf returns what is known of a row, and reads it if nothing is.
func (r *Rows[T]) stateOf(ctx context.Context, key string) (state, error) {
	r.mu.Lock()
	known, ok := r.known[key]
	r.mu.Unlock()
	if ok {
		return known, nil
	}
	value, exists, err := r.View.Get(ctx, key)
	if err != nil {
		return state{}, err
	}
	return r.remember(key, exists, value)
}

// remember notes what was read of a row.
func (r *Rows[T]) remember(key string, exists bool, value T) (state, error) {
	s := state{exists: exists}
	if exists {
		var err error
		if _, s.cells, err = r.table.layout.encode(reflect.ValueOf(value)); err != nil {
			return state{}, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(key, s)
	return s, nil
}

// note notes a state, unless there is no more space for it. The caller holds r.mu.
func (r *Rows[T]) note(key string, s state) {
	if _, known := r.known[key]; known || len(r.known) < maxKnown {
		r.known[key] = s
	}
}
