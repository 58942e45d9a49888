package index

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// An Index declares an index. All processes declare it in the same way.
type Index struct {
	// Name names the index: letters, digits, '-' and '_', at most 64.
	Name string
	// Table is the table that it is about.
	Table string
	// Columns are what the keys depend on. Without Keys, the key of a row consists of their
	// values, and a row without a cell in one of them has no key. An empty value is a value: the
	// key has an empty part.
	Columns []txn.Column
	// Unique says that no two rows may have the same key.
	Unique bool
	// Keys, if not nil, returns the keys of a row, at most 1,000. It has to depend on its
	// arguments alone. Increase Version if it changes, and give the index a new Name.
	Keys    func(row string, values Values) []Key
	Version int
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// base is how the keys of the index's entries begin.
func (i *Index) base() string { return i.Name + "/" }

// A State says what happens to an index.
type State string

// The states of an index, in this order.
const (
	Absent     State = ""            // commits do not maintain it
	DeleteOnly State = "delete-only" // commits remove old entries, and add none
	Building   State = "building"    // commits maintain it, rows from before may be missing
	Ready      State = "ready"       // it is complete
	Dropping   State = "dropping"    // commits do not maintain it, and its entries are being removed
)

// rank orders the states that Create goes through.
func (s State) rank() int { return slices.Index([]State{Absent, DeleteOnly, Building, Ready}, s) }

// A record is what is stored of an index: its state and its definition.
type record struct {
	State   State    `json:"state"`
	Table   string   `json:"table"`
	Columns []string `json:"columns"` // quoted, because qualifiers need not be text
	Unique  bool     `json:"unique"`
	Keys    bool     `json:"keys"` // a function makes the keys
	Version int      `json:"version"`

	ts tso.Timestamp // its commit timestamp
}

// statePrefix is how the row keys of records begin. No index has such a name.
const statePrefix = "!state/"

func (i *Index) record(s State) record {
	r := record{State: s, Table: i.Table, Unique: i.Unique, Keys: i.Keys != nil, Version: i.Version}
	for _, c := range i.Columns {
		r.Columns = append(r.Columns, quoted(c))
	}
	return r
}

// index returns the index of a record, without its function.
func (r record) index(name string) (*Index, error) {
	i := &Index{Name: name, Table: r.Table, Unique: r.Unique, Version: r.Version}
	for _, q := range r.Columns {
		key, err := strconv.Unquote(q)
		family, qualifier, ok := strings.Cut(key, ":")
		if err != nil || !ok {
			return nil, fmt.Errorf("index: the record of %s has a column %s", name, q)
		}
		i.Columns = append(i.Columns, txn.Column{Family: family, Qualifier: qualifier})
	}
	return i, nil
}

func quoted(c txn.Column) string { return fmt.Sprintf("%q", c.Key()) }

// check refuses a record of another definition.
func (i *Index) check(r record) error {
	want := i.record(r.State)
	if r.Table != want.Table || !slices.Equal(r.Columns, want.Columns) || r.Unique != want.Unique || r.Keys != want.Keys || r.Version != want.Version {
		return fmt.Errorf("index: %s: %w: it is recorded with table %q, columns %q, unique %v, function %v, version %d", i.Name, ErrDefinition, r.Table, r.Columns, r.Unique, r.Keys, r.Version)
	}
	return nil
}

func decodeRecord(name string, value []byte, ts tso.Timestamp) (record, error) {
	r := record{ts: ts}
	if err := json.Unmarshal(value, &r); err != nil {
		return r, fmt.Errorf("index: the record of %s: %w", name, err)
	}
	return r, nil
}

// entryOf returns the entry of a key.
func (i *Index) entryOf(row string, key Key) (entry, error) {
	at := i.base() + key.encode()
	if !i.Unique {
		at += Key{row}.encode()
	}
	if err := format.CheckRowKey(at); err != nil {
		return entry{}, fmt.Errorf("index: %s, row %q of table %q: its entry: %w", i.Name, row, i.Table, err)
	}
	return entry{Entry{key, row}, at}, nil
}

// decodeEntry returns the entry that is stored in a row.
func (i *Index) decodeEntry(at, row string) (Entry, error) {
	key, err := decodeKey(strings.TrimPrefix(at, i.base()))
	if n := len(key); err == nil && !i.Unique {
		if n == 0 || key[n-1] != row {
			return Entry{}, fmt.Errorf("index: %s: the entry %q is about row %q", i.Name, at, row)
		}
		key = key[:n-1]
	}
	if err != nil {
		return Entry{}, fmt.Errorf("index: %s: the entry %q: %w", i.Name, at, err)
	}
	return Entry{key, row}, nil
}

// entries returns the entries of a row. A row without one of the columns has none.
func (i *Index) entries(row string, values Values) (all []entry, err error) {
	if len(values) == 0 {
		return nil, nil
	}
	var keys []Key
	if i.Keys != nil {
		if keys = i.Keys(row, values); len(keys) > maxKeys {
			return nil, fmt.Errorf("index: %s, row %q of table %q: %w: %d keys; a row may have %d", i.Name, row, i.Table, txn.ErrLimit, len(keys), maxKeys)
		}
	} else {
		var key Key
		for _, c := range i.Columns {
			value, ok := values[c]
			if !ok {
				return nil, nil
			}
			key = append(key, string(value))
		}
		keys = []Key{key}
	}
	for _, k := range keys {
		e, err := i.entryOf(row, k)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(a entry) bool { return a.at == e.at }) {
			all = append(all, e)
		}
	}
	return all, nil
}

// maxKeys bounds the keys of a row in an index.
const maxKeys = 1000
