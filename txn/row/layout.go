package row

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A CellError says which cell, and which field of the struct, has a value that cannot be
// encoded or decoded, and why.
type CellError struct {
	Cell  txn.Cell
	Field string
	Err   error
}

// Error names the cell, the field and the cause.
func (e *CellError) Error() string {
	return fmt.Sprintf("row: cell %s, field %s: %v", e.Cell, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *CellError) Unwrap() error { return e.Err }

// A layout says which field of a struct is in which cell.
type layout struct {
	table  string
	key    []int // index of the field
	fields []field
	read   []txn.ReadOption // the columns and families of all fields
}

type field struct {
	name    string
	index   []int
	column  txn.Column
	members bool // the field is a map with a cell for each key
	codec
}

// cells are the present cells of a row.
type cells map[txn.Column][]byte

func newLayout(table string, t reflect.Type) (*layout, error) {
	l := &layout{table: table}
	fail := func(text string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("row: %s in table %q: %w: %s", t, table, txn.ErrInvalid, fmt.Sprintf(text, args...))
	}
	switch {
	case table == "":
		return fail("empty table name")
	case t.Kind() != reflect.Struct:
		return fail("rows are structs")
	}
	for _, sf := range reflect.VisibleFields(t) {
		tag, ok := sf.Tag.Lookup("row")
		if !ok {
			continue
		}
		if !sf.IsExported() || throughPointer(t, sf.Index) {
			return fail("field %s has a tag, but is not exported, or in an embedded pointer", sf.Name)
		}
		if tag == "key" {
			if l.key != nil || sf.Type.Kind() != reflect.String {
				return fail("field %s is the row key; one field may be, and its type has to be a string", sf.Name)
			}
			l.key = sf.Index
			continue
		}
		f, err := newField(sf, tag)
		if err == nil {
			err = l.add(f)
		}
		if err != nil {
			return fail("field %s: %v", sf.Name, err)
		}
	}
	if l.key == nil || len(l.fields) == 0 {
		return fail(`a struct needs a field with the tag row:"key", and one with row:"family:qualifier"`)
	}
	var columns []txn.Column
	var families []string
	for _, f := range l.fields {
		if f.members {
			families = append(families, f.column.Family)
		} else {
			columns = append(columns, f.column)
		}
	}
	if len(columns) > 0 {
		l.read = append(l.read, txn.Columns(columns...))
	}
	if len(families) > 0 {
		l.read = append(l.read, txn.Families(families...))
	}
	return l, nil
}

func throughPointer(t reflect.Type, index []int) bool {
	for _, i := range index[:len(index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}

func newField(sf reflect.StructField, tag string) (field, error) {
	name, option, _ := strings.Cut(tag, ",")
	column, ok := format.SplitColumn(name)
	if !ok {
		return field{}, fmt.Errorf("the tag %q is neither key nor family:qualifier", tag)
	}
	f := field{name: sf.Name, index: sf.Index, column: column, members: column.Qualifier == "*"}
	t := sf.Type
	if f.members {
		if t.Kind() != reflect.Map || t.Key().Kind() != reflect.String {
			return field{}, fmt.Errorf("the tag %q needs a map with string keys, not %s", tag, t)
		}
		f.column.Qualifier, t = "", t.Elem()
	}
	if err := format.CheckColumn(f.column); err != nil {
		return field{}, err
	}
	var err error
	if f.members && t.Kind() == reflect.Struct && t.NumField() == 0 && option == "" {
		f.codec = codec{
			encode: func(reflect.Value) ([]byte, error) { return []byte{}, nil },
			decode: func([]byte, reflect.Value) error { return nil },
		}
	} else {
		f.codec, err = codecOf(t, option)
	}
	return f, err
}

// add adds a field, unless another one has its cells.
func (l *layout) add(f field) error {
	for _, g := range l.fields {
		if g.column == f.column && g.members == f.members || g.column.Family == f.column.Family && (g.members || f.members) {
			return fmt.Errorf("field %s has the same cells", g.name)
		}
	}
	l.fields = append(l.fields, f)
	return nil
}

func (l *layout) cell(key string, c txn.Column) txn.Cell {
	return txn.Cell{Table: l.table, Row: key, Family: c.Family, Qualifier: c.Qualifier}
}

// keyOf returns the row key of a struct.
func (l *layout) keyOf(v reflect.Value) string { return v.FieldByIndex(l.key).String() }

// encode returns the key and the cells of a struct.
func (l *layout) encode(v reflect.Value) (key string, all cells, err error) {
	if key = l.keyOf(v); key == "" {
		return "", nil, fmt.Errorf("row: %s in table %q: %w: empty row key", v.Type(), l.table, txn.ErrInvalid)
	}
	all = cells{}
	for _, f := range l.fields {
		v := v.FieldByIndex(f.index)
		if !f.members {
			if f.optional && v.IsNil() {
				continue
			}
			if err := l.encodeCell(key, f, f.column, v, all); err != nil {
				return "", nil, err
			}
			continue
		}
		for members := v.MapRange(); members.Next(); {
			c := txn.Column{Family: f.column.Family, Qualifier: members.Key().String()}
			if err := l.encodeCell(key, f, c, members.Value(), all); err != nil {
				return "", nil, err
			}
		}
	}
	return key, all, nil
}

func (l *layout) encodeCell(key string, f field, c txn.Column, v reflect.Value, all cells) error {
	var data []byte
	err := errors.New("the element is nil; delete it from the map instead")
	if !f.optional || !v.IsNil() {
		data, err = f.codec.encode(v)
	}
	if err != nil {
		return &CellError{l.cell(key, c), f.name, fmt.Errorf("%w: %w", txn.ErrInvalid, err)}
	}
	all[c] = data
	return nil
}

// decode sets a struct, which is zero, to what a row holds.
func (l *layout) decode(row bigtable.Row, v reflect.Value) error {
	key := row.Key()
	v.FieldByIndex(l.key).SetString(key)
	for _, f := range l.fields {
		v := v.FieldByIndex(f.index)
		for _, item := range row[f.column.Family] {
			c, _ := format.SplitColumn(item.Column)
			var err error
			switch {
			case f.members:
				if v.IsNil() {
					v.Set(reflect.MakeMap(v.Type()))
				}
				elem := reflect.New(v.Type().Elem()).Elem()
				err = f.codec.decode(item.Value, elem)
				v.SetMapIndex(reflect.ValueOf(c.Qualifier).Convert(v.Type().Key()), elem)
			case c == f.column:
				err = f.codec.decode(item.Value, v)
			}
			if err != nil {
				return &CellError{l.cell(key, c), f.name, err}
			}
		}
	}
	return nil
}
