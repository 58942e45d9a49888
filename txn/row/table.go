package row

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
)

// A Table describes the rows of a table as structs of type T. It is safe for concurrent use,
// and mostly a global variable.
type Table[T any] struct{ layout *layout }

// NewTable returns the description of a table. A wrong tag is an error that matches
// txn.ErrInvalid and names the field. NewTable does not look at the table itself.
func NewTable[T any](name string) (Table[T], error) {
	l, err := newLayout(name, reflect.TypeFor[T]())
	return Table[T]{l}, err
}

// MustTable is NewTable for global variables. It panics if a tag is wrong.
func MustTable[T any](name string) Table[T] {
	t, err := NewTable[T](name)
	if err != nil {
		panic(err)
	}
	return t
}

// Name returns the table's name.
func (t Table[T]) Name() string { return t.layout.table }

// Read returns the options with which View.ReadRow and View.ReadRows read what Decode needs.
func (t Table[T]) Read() []txn.ReadOption { return t.layout.read }

// Decode returns the struct of a row that was read. The error is a [CellError].
func (t Table[T]) Decode(r bigtable.Row) (T, error) {
	var value T
	if err := t.layout.decode(r, reflect.ValueOf(&value).Elem()); err != nil {
		var zero T
		return zero, err
	}
	return value, nil
}

// At returns the rows of a snapshot.
func (t Table[T]) At(s *txn.Snapshot) View[T] { return View[T]{t, s.Table(t.layout.table)} }

// In returns the rows in a transaction. What Get and Scan of the returned Rows read decides
// what its Set writes, so use one Rows for each table in a transaction.
func (t Table[T]) In(tx *txn.Txn) *Rows[T] {
	table := tx.Table(t.layout.table)
	return &Rows[T]{View: View[T]{t, table}, writes: table, known: map[string]state{}}
}

// A View reads rows.
type View[T any] struct {
	table Table[T]
	reads txn.Reader
}

// Get reads a row. ok is false if none of its cells exists.
func (v View[T]) Get(ctx context.Context, key string) (value T, ok bool, err error) {
	r, err := v.reads.ReadRow(ctx, key, v.table.layout.read...)
	if err != nil || len(r) == 0 {
		return value, false, err
	}
	value, err = v.table.Decode(r)
	return value, err == nil, err
}

// Scan reads the rows of rs, as txn.View.ReadRows does. The options may be txn.Limit and
// txn.Reverse. A row that cannot be decoded comes with a [CellError], and the loop may
// continue. Any other error ends the iteration.
func (v View[T]) Scan(ctx context.Context, rs bigtable.RowSet, opts ...txn.ReadOption) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		opts = append(opts[:len(opts):len(opts)], v.table.layout.read...)
		for r, err := range v.reads.ReadRows(ctx, rs, opts...) {
			var value T
			if err == nil {
				value, err = v.table.Decode(r)
			}
			if !yield(value, err) {
				return
			}
		}
	}
}

// ErrExists is the error of Insert if the row exists.
var ErrExists = errors.New("the row exists")

func existsError(l *layout, key string) error {
	return fmt.Errorf("row: table %q, row %q: %w", l.table, key, ErrExists)
}
