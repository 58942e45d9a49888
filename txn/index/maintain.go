package index

import (
	"context"
	"maps"
	"slices"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/txn"
)

// maintain adds the changes of indexes to what a transaction writes.
func maintain(ctx context.Context, x *Indexes, tx *txn.Txn) error {
	m := &maintenance{x: x, tx: tx, rows: map[string]map[string]*change{}, states: map[string]State{}, added: map[string]added{}, removed: map[string]removed{}}
	for cell, value := range tx.Writes() {
		if cell.Table != x.table {
			m.note(cell, value)
		}
	}
	if len(m.rows) == 0 {
		return nil
	}
	s, err := x.current(ctx, tx)
	if err != nil {
		return err
	}
	tx.CommitBefore(s.ts + whole)
	if err := m.choose(s); err != nil || len(m.indexes) == 0 {
		return err
	}
	if err := m.read(ctx); err != nil {
		return err
	}
	if err := m.compare(); err != nil {
		return err
	}
	if err := m.checkUnique(ctx); err != nil {
		return err
	}
	m.write()
	return nil
}

// A maintenance computes what a transaction changes in indexes.
type maintenance struct {
	x       *Indexes
	tx      *txn.Txn
	rows    map[string]map[string]*change // by table and row
	indexes []*Index                      // those that the transaction may change

	states map[string]State // by the index's name

	added   map[string]added   // new entries by their place
	removed map[string]removed // entries to remove by their place
	// known are the rows that entries of unique indexes are about, as far as they were read;
	// "" is none.
	known map[string]string
}

// A change is what the transaction writes in a row, and what was there.
type change struct {
	written map[txn.Column][]byte // nil for a delete
	old     Values
}

type added struct {
	entry
	index *Index
}

type removed struct {
	rows  []string // while an index is built, several rows may have the key
	index *Index
}

func (m *maintenance) note(cell txn.Cell, value []byte) {
	rows := m.rows[cell.Table]
	if rows == nil {
		rows = map[string]*change{}
		m.rows[cell.Table] = rows
	}
	c := rows[cell.Row]
	if c == nil {
		c = &change{written: map[txn.Column][]byte{}, old: Values{}}
		rows[cell.Row] = c
	}
	c.written[cell.Column()] = value
}

// touches reports whether the transaction writes one of the columns in a row.
func (c *change) touches(columns []txn.Column) bool {
	return slices.ContainsFunc(columns, func(col txn.Column) bool { _, ok := c.written[col]; return ok })
}

// choose finds the indexes that are maintained and that the transaction touches. It fails if
// there is one that this process does not know.
func (m *maintenance) choose(s *states) error {
	for _, name := range slices.Sorted(maps.Keys(s.by)) {
		r := s.by[name]
		if r.State == Dropping || m.rows[r.Table] == nil {
			continue
		}
		i, err := m.x.recorded(name, r)
		if err != nil {
			if !m.touchesQuoted(r) {
				continue
			}
			return err
		}
		touched := false
		for key, c := range m.rows[i.Table] {
			if !c.touches(i.Columns) {
				continue
			}
			touched = true
			for _, col := range i.Columns {
				if _, ok := c.written[col]; !ok {
					m.tx.Table(i.Table).Lock(key, col.Family, col.Qualifier)
				}
			}
		}
		if touched {
			m.indexes = append(m.indexes, i)
			m.states[name] = r.State
		}
	}
	return nil
}

// touchesQuoted reports whether the transaction writes a column of a recorded index.
func (m *maintenance) touchesQuoted(r record) bool {
	for _, c := range m.rows[r.Table] {
		for col := range c.written {
			if slices.Contains(r.Columns, quoted(col)) {
				return true
			}
		}
	}
	return false
}

// read reads the old values of the rows and, at the same time, the entries of unique keys that
// are known without them.
func (m *maintenance) read(ctx context.Context) error {
	snapshot, err := m.tx.Client().Snapshot(ctx, txn.At(m.tx.StartTS()))
	if err != nil {
		return err
	}
	columns := map[string][]txn.Column{}
	for _, i := range m.indexes {
		columns[i.Table] = append(columns[i.Table], i.Columns...)
	}
	early, err := m.keysKnownEarly()
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for table, cols := range columns {
		var keys bigtable.RowList
		for key, c := range m.rows[table] {
			if c.touches(cols) {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		g.Go(func() error {
			for row, err := range snapshot.Table(table).ReadRows(gctx, keys, txn.Columns(cols...)) {
				if err != nil {
					return err
				}
				m.rows[table][row.Key()].old = valuesOf(row)
			}
			return nil
		})
	}
	m.known = map[string]string{}
	g.Go(func() error { return m.readEntries(gctx, snapshot.Table(m.x.table), early) })
	return g.Wait()
}

// keysKnownEarly returns the places of unique entries of rows in which the transaction writes
// every column of the index.
func (m *maintenance) keysKnownEarly() (early bigtable.RowList, err error) {
	for _, i := range m.indexes {
		if !i.Unique || m.states[i.Name] == DeleteOnly {
			continue
		}
		for key, c := range m.rows[i.Table] {
			if slices.ContainsFunc(i.Columns, func(col txn.Column) bool { _, ok := c.written[col]; return !ok }) {
				continue
			}
			entries, err := i.entries(key, c.after(i))
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				early = append(early, e.at)
			}
		}
	}
	return early, nil
}

// readEntries notes which rows the entries at these places are about.
func (m *maintenance) readEntries(ctx context.Context, view txn.Reader, at bigtable.RowList) error {
	if len(at) == 0 {
		return nil
	}
	slices.Sort(at)
	at = slices.Compact(at)
	for _, k := range at {
		m.known[k] = ""
	}
	for row, err := range view.ReadRows(ctx, at, txn.Columns(m.x.rowColumn())) {
		if err != nil {
			return err
		}
		m.known[row.Key()] = string(row[m.x.family][0].Value)
	}
	return nil
}

// before returns the old values of the index's columns, and after the new ones.
func (c *change) before(i *Index) Values {
	values := Values{}
	for _, col := range i.Columns {
		if v, ok := c.old[col]; ok {
			values[col] = v
		}
	}
	return values
}

func (c *change) after(i *Index) Values {
	values := c.before(i)
	for _, col := range i.Columns {
		if value, ok := c.written[col]; ok && value == nil {
			delete(values, col)
		} else if ok {
			values[col] = value
		}
	}
	return values
}

// compare finds the entries to add and to remove.
func (m *maintenance) compare() error {
	for _, i := range m.indexes {
		for key, c := range m.rows[i.Table] {
			if !c.touches(i.Columns) {
				continue
			}
			old, err := i.entries(key, c.before(i))
			if err != nil {
				old = nil // such a row cannot have been indexed
			}
			now, err := i.entries(key, c.after(i))
			if err != nil {
				return err
			}
			for _, e := range old {
				if !slices.ContainsFunc(now, func(n entry) bool { return n.at == e.at }) {
					m.removed[e.at] = removed{append(m.removed[e.at].rows, key), i}
				}
			}
			if m.states[i.Name] == DeleteOnly {
				continue
			}
			for _, e := range now {
				if slices.ContainsFunc(old, func(o entry) bool { return o.at == e.at }) {
					continue
				}
				if other, ok := m.added[e.at]; ok && other.Row != key {
					return &UniqueError{i.Name, e.Key, key, other.Row}
				}
				m.added[e.at] = added{e, i}
			}
		}
	}
	return nil
}

// checkUnique fails if another row has one of the new keys of unique indexes.
func (m *maintenance) checkUnique(ctx context.Context) error {
	var rest bigtable.RowList
	for at, a := range m.added {
		if _, ok := m.known[at]; !ok && a.index.Unique {
			rest = append(rest, at)
		}
	}
	for at, r := range m.removed {
		if r.index.Unique && m.states[r.index.Name] != Ready {
			rest = append(rest, at)
		}
	}
	if len(rest) > 0 {
		snapshot, err := m.tx.Client().Snapshot(ctx, txn.At(m.tx.StartTS()))
		if err == nil {
			err = m.readEntries(ctx, snapshot.Table(m.x.table), rest)
		}
		if err != nil {
			return err
		}
	}
	for at, a := range m.added {
		other := m.known[at]
		if a.index.Unique && other != "" && other != a.Row && !slices.Contains(m.removed[at].rows, other) {
			return &UniqueError{a.index.Name, a.Key, a.Row, other}
		}
	}
	return nil
}

func (m *maintenance) write() {
	entries, c := m.tx.Table(m.x.table), m.x.rowColumn()
	for at, r := range m.removed {
		_, again := m.added[at]
		switch other, known := m.known[at]; {
		case again:
		case known && !slices.Contains(r.rows, other):
			// While the index is built, another row may have the same key, and the entry.
			// The lock makes sure that no build adds one for this row now.
			entries.Lock(at, c.Family, c.Qualifier)
		default:
			entries.Delete(at, c.Family, c.Qualifier)
		}
	}
	for at, a := range m.added {
		entries.Set(at, c.Family, c.Qualifier, []byte(a.Row))
	}
}

func valuesOf(row bigtable.Row) Values {
	values := Values{}
	for family, items := range row {
		for _, item := range items {
			values[txn.Column{Family: family, Qualifier: item.Column[len(family)+1:]}] = item.Value
		}
	}
	return values
}
