package emulator_test

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// readable reports whether a read should have succeeded, and checks its error.
func (m *performance) readable(r reader, point bool, err error) (bool, error) {
	want, name := error(nil), ""
	switch {
	case r.txn != nil && r.txn.Serializable && !point:
		want, name = txn.ErrSerializableScan, "refused"
	case r.ts < m.safe, r.stale && r.ts == m.safe && errors.Is(err, txn.ErrTooOld):
		want, name = txn.ErrTooOld, "too old"
	}
	if want == nil && err == nil {
		return true, nil
	}
	if !errors.Is(err, want) || err == nil {
		return false, fmt.Errorf("a read at %d (safe point %d) ended with %w; want %v", r.ts, m.safe, err, want)
	}
	m.counts.add(name, 1)
	return false, nil
}

// isEmpty reports whether a query has no rows, which needs no request and never fails.
func (q query) isEmpty() bool { return !slices.ContainsFunc(planRows, q.contains) }

func textOfRows(rows iter.Seq2[bigtable.Row, error]) (text []string, err error) {
	for row, err := range rows {
		if err != nil {
			return nil, err
		}
		text = append(text, rowText(row))
	}
	return text, nil
}

func compare(what string, want, got []string) error {
	if !slices.Equal(want, got) {
		return fmt.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
	return nil
}

// query reads rows, or one row.
func (m *performance) query(r reader, s planStep) error {
	view, q := m.model(r, s.table), s.query
	list, isList := q.rows.(bigtable.RowList)
	point := q.isPoint()
	if s.kind == "read row" {
		row, err := r.table(s.table).ReadRow(m.ctx, s.row, q.selection()...)
		if ok, err := m.readable(r, point, err); !ok {
			return err
		}
		if point {
			m.validate(r, s.table, []string{s.row}, q.columns)
		}
		return compare(fmt.Sprintf("row %q at %d, %v", s.row, r.ts, q), []string{view.readRow(s.row, q)}, []string{rowText(row)})
	}
	got, err := textOfRows(r.table(s.table).ReadRows(m.ctx, q.rows, q.options()...))
	if err == nil && q.isEmpty() {
		return compare(q.String(), nil, got)
	}
	if ok, err := m.readable(r, point && isList, err); !ok {
		return err
	}
	if point && isList {
		m.validate(r, s.table, list, q.columns)
	}
	return compare(fmt.Sprintf("%v at %d", q, r.ts), view.readRows(q), got)
}

// latest reads a row at its present, whole and cell by cell. Then a stale snapshot of the client
// shows it again.
func (m *performance) latest(s planStep) error {
	c := m.clients[s.client]
	table, now := c.Latest(crashTables[s.table]), max(m.newest, tso.Timestamp(time.Now().UnixMicro())-1e6)
	view := m.state(s.table, now)
	if view.readRow(s.row, query{}) != m.state(s.table, now+3e6).readRow(s.row, query{}) {
		return nil // what expires just now may be shown or not
	}
	row, err := table.ReadRow(m.ctx, s.row, s.query.selection()...)
	if err == nil {
		err = compare(fmt.Sprintf("the latest state of row %q, %v", s.row, s.query), []string{view.readRow(s.row, s.query)}, []string{rowText(row)})
	}
	if err != nil {
		return err
	}
	for _, column := range s.columns[:min(4, len(s.columns))] {
		v, ok, err := table.Get(m.ctx, s.row, column.Family, column.Qualifier)
		want, present := view.cell(s.row, column)
		if err != nil || ok != present || ok && string(v) != string(want.value) {
			return fmt.Errorf("the latest state of %v is %q, %v, error %w; want %q, %v", cellAt(s.table, s.row, column), v, ok, err, want.value, present)
		}
	}
	m.counts.add("reads of the latest state", 1)
	before := c.Stats().ReusedTimestamps
	shot, err := c.Snapshot(m.ctx, txn.MaxStaleness(time.Hour))
	if err != nil {
		return err
	}
	if c.Stats().ReusedTimestamps > before {
		m.counts.add("stale snapshots behind them", 1)
	}
	m.note(s.client, shot.ReadTS())
	if shot.ReadTS() < m.safe {
		return nil
	}
	row, err = shot.Table(crashTables[s.table]).ReadRow(m.ctx, s.row, s.query.selection()...)
	if err == nil {
		err = compare(fmt.Sprintf("row %q in a stale snapshot at %d, %v", s.row, shot.ReadTS(), s.query), []string{view.readRow(s.row, s.query)}, []string{rowText(row)})
	}
	return err
}

// A playedList is a list of which some pages have been read.
type playedList struct {
	table int
	rowList
	query query
	left  []string // what the next pages have to show
}

// page reads the next page of an open list, or begins one. Lists go from client to client.
func (m *performance) page(s planStep) error {
	i := s.which % 3
	if i >= len(m.lists) {
		l := &playedList{table: s.table, rowList: rowList{table: crashTables[s.table], reverse: s.query.reverse, options: s.query.selection()}, query: s.query}
		switch s.which {
		case 0:
			l.start, l.end = s.row[:1], txn.PrefixEnd(s.row[:1])
		case 1:
			l.start, l.end = min(s.row, planRows[0]), max(s.row, planRows[0])
		}
		i = len(m.lists)
		m.lists = append(m.lists, l)
	}
	l, size := m.lists[i], 1+len(s.more)/2
	first, all := l.at == 0, l.rowList
	got, more, err := l.page(m.ctx, m.clients[s.client], size)
	if err != nil || first || !more {
		m.lists = slices.Delete(m.lists, i, i+1)
	}
	if first && err == nil {
		if err := m.fresh(s.client, l.at, 0, 0); err != nil {
			return err
		}
		m.note(s.client, l.at)
		q := l.query
		q.limit, q.contains = 0, func(key string) bool {
			return key >= all.start && (all.end == "" || key < all.end)
		}
		l.left = m.state(l.table, l.at).readRows(q)
		if more {
			m.lists = append(m.lists, l)
		}
	}
	if ok, err := m.readable(reader{ts: cmp.Or(l.at, forever)}, false, err); !ok {
		return err
	}
	n := min(size, len(l.left))
	var text []string
	for _, row := range got {
		text = append(text, rowText(row))
	}
	if err := compare(fmt.Sprintf("page of %d rows at %d of %+v, %v", size, l.at, all, l.query), l.left[:n], text); err != nil {
		return err
	}
	if l.left = l.left[n:]; more != (len(l.left) > 0) {
		return fmt.Errorf("the list at %d goes on: %v, and %q is left", l.at, more, l.left)
	}
	if !first {
		m.counts.add("later pages", 1)
	}
	return nil
}

// getMany reads cells of both tables at once. A row is read in all columns that are asked for in
// its table.
func (m *performance) getMany(r reader, s planStep) error {
	rows := append(s.more, s.row)
	var cells []txn.Cell
	for i, row := range rows {
		cells = append(cells, cellAt((s.table+i)%2, row, s.columns[i%len(s.columns)]))
	}
	table := func(name string) *txn.View { return r.table(slices.Index(crashTables, name)) }
	got, err := readTables(m.ctx, table, cells)
	if ok, err := m.readable(r, true, err); !ok {
		return err
	}
	m.counts.add("cells of several tables", len(cells))
	for i := range crashTables {
		var rows []string
		var columns []txn.Column
		for _, c := range cells {
			if c.Table == crashTables[i] {
				rows, columns = append(rows, c.Row), append(columns, c.Column())
			}
		}
		m.validate(r, i, rows, columns)
	}
	var want, has []string
	for _, c := range cells {
		v, ok := m.model(r, slices.Index(crashTables, c.Table)).value(c.Row, c.Column())
		want = append(want, fmt.Sprintf("%v: %q %v", c, v, ok))
		value, ok := got[c]
		has = append(has, fmt.Sprintf("%v: %q %v", c, value, ok))
	}
	return compare(fmt.Sprintf("cells of several tables at %d", r.ts), want, has)
}

// validate notes what a serializable transaction has read.
func (m *performance) validate(r reader, table int, rows []string, columns []txn.Column) {
	if r.txn == nil || !r.txn.Serializable {
		return
	}
	for _, row := range rows {
		for _, c := range columns {
			if len(r.txn.own[table][row][c]) == 0 {
				r.txn.reads[cellAt(table, row, c)] = true
			}
		}
	}
}

// gets reads cells one by one. A second Get of the same order uses the cache.
func (m *performance) gets(r reader, s planStep) error {
	view := m.model(r, s.table)
	for _, c := range s.columns[:min(4, len(s.columns))] {
		if s.kind == "observe" {
			_, err := changes.Observe(m.ctx, r.txn.tx, cellAt(0, s.row, c))
			if ok, err := m.readable(r, true, err); !ok {
				return err
			}
			m.counts.add("observed", 1)
		}
		var v []byte
		var ok bool
		var err error
		if s.kind == "get for update" && r.txn != nil {
			v, ok, err = r.txn.tx.Table(crashTables[s.table]).GetForUpdate(m.ctx, s.row, c.Family, c.Qualifier)
		} else {
			v, ok, err = r.table(s.table).Get(m.ctx, s.row, c.Family, c.Qualifier)
		}
		if err != nil || r.ts >= m.safe { // a value in memory may be shown below the safe point
			if ok, err := m.readable(r, true, err); !ok {
				return err
			}
		}
		if s.kind == "get for update" && r.txn != nil {
			m.lock(r.txn, cellAt(s.table, s.row, c))
		}
		m.validate(r, s.table, []string{s.row}, []txn.Column{c})
		want, present := view.cell(s.row, c)
		if ok != present || ok && string(v) != string(want.value) {
			return fmt.Errorf("%v at %d is %q, %v; want %q, %v", cellAt(s.table, s.row, c), r.ts, v, ok, want.value, present)
		}
	}
	return nil
}

// value returns the value of a cell, and nil if it is absent.
func (v modelView) value(row string, c txn.Column) ([]byte, bool) {
	ver, ok := v.cell(row, c)
	if !ok {
		return nil, false
	}
	return ver.value, true
}

// agree reads the same cells at one timestamp in every way, from several clients at once.
func (m *performance) agree(ts tso.Timestamp, table int, clients []*txn.Client) error {
	model := m.state(table, ts)
	everything := query{contains: func(string) bool { return true }}
	all := model.readRows(everything)
	backward := model.readRows(query{contains: everything.contains, reverse: true})
	var mu sync.Mutex
	var found []error
	var reading sync.WaitGroup
	way := func(name string, read func() ([]string, error), want []string) {
		reading.Go(func() {
			got, err := read()
			if err == nil {
				err = compare(fmt.Sprintf("%s of table %s at %d", name, crashTables[table], ts), want, got)
			} else {
				err = fmt.Errorf("%s of table %s at %d: %w", name, crashTables[table], ts, err)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, err)
			}
		})
	}
	for i, c := range clients {
		shot, err := c.Snapshot(m.ctx, txn.At(ts))
		if err != nil {
			return err
		}
		named, err := c.Snapshot(m.ctx, txn.At(ts), txn.Named("agree"))
		if err != nil {
			return err
		}
		view := shot.Table(crashTables[table])
		scan := func(rows bigtable.RowSet, opts ...txn.ReadOption) func() ([]string, error) {
			return func() ([]string, error) { return textOfRows(view.ReadRows(m.ctx, rows, opts...)) }
		}
		rowByRow := func(opts ...txn.ReadOption) func() ([]string, error) {
			return func() (text []string, err error) {
				for _, key := range slices.Sorted(slices.Values(planRows)) {
					row, err := view.ReadRow(m.ctx, key, opts...)
					if err != nil {
						return nil, err
					}
					if len(row) > 0 {
						text = append(text, rowText(row))
					}
				}
				return text, nil
			}
		}
		way("scan", scan(nil), all)
		way("scan backward", scan(nil, txn.Reverse()), backward)
		way("batch", scan(bigtable.RowList(planRows)), all)
		way("batch of columns", scan(bigtable.RowList(planRows), txn.Columns(m.columns...)), all)
		way("rows", rowByRow(), all)
		way("families", rowByRow(txn.Families(modelFamilies...)), all)
		way("columns", rowByRow(txn.Columns(m.columns...)), all)
		keysOnly := model.readRows(query{contains: everything.contains, keysOnly: true})
		way("keys only", scan(nil, txn.KeysOnly()), keysOnly)
		way("keys of columns", rowByRow(txn.Columns(m.columns...), txn.KeysOnly()), keysOnly)
		first := query{contains: everything.contains, families: modelFamilies[:1], cellsPerRow: 2}
		firstCells := model.readRows(first)
		way("first cells", scan(nil, first.selection()...), firstCells)
		way("first cells, row by row", rowByRow(first.selection()...), firstCells)
		q := txn.Qualifiers(modelFamilies[0], "q", "")
		before := txn.Qualifiers(modelFamilies[0], "", "q")
		way("ranges of qualifiers", scan(bigtable.RowList(planRows), before, q, txn.Families(modelFamilies[1:]...)), all)
		var cells []txn.Cell
		var values []string
		for _, key := range planRows {
			for _, c := range m.columns {
				v, ok := model.value(key, c)
				cells, values = append(cells, cellAt(table, key, c)), append(values, fmt.Sprintf("%q %v", v, ok))
			}
		}
		way("many cells", func() (text []string, err error) {
			got, err := readTables(m.ctx, shot.Table, cells)
			for _, c := range cells {
				v, ok := got[c]
				text = append(text, fmt.Sprintf("%q %v", v, ok))
			}
			return text, err
		}, values)
		way("family by family", func() ([]string, error) {
			var text []string
			for _, key := range slices.Sorted(slices.Values(planRows)) {
				row := ""
				for _, family := range modelFamilies {
					r, err := view.ReadRow(m.ctx, key, txn.Families(family))
					if err != nil {
						return nil, err
					}
					row += rowText(r)
				}
				if row != "" {
					text = append(text, row)
				}
			}
			return text, nil
		}, all)
		// Single cells: at the same time, which may batch them, and one after the other
		// under a name, which may read them ahead.
		columns := m.columns[:min(6, len(m.columns))]
		for _, key := range planRows {
			get := func(s *txn.Snapshot, c txn.Column) (string, error) {
				v, ok, err := s.Table(crashTables[table]).Get(m.ctx, key, c.Family, c.Qualifier)
				return fmt.Sprintf("%q %v", v, ok), err
			}
			var want []string
			for _, c := range columns {
				v, ok := model.value(key, c)
				want = append(want, fmt.Sprintf("%q %v", v, ok))
				way(fmt.Sprintf("row %q, cell %q", key, c), func() ([]string, error) {
					text, err := get(shot, c)
					return []string{text}, err
				}, want[len(want)-1:])
			}
			way(fmt.Sprintf("client %d, row %q, cells under a name", i, key), func() (text []string, err error) {
				for _, c := range columns {
					t, err := get(named, c)
					if err != nil {
						return nil, err
					}
					text = append(text, t)
				}
				return text, nil
			}, want)
		}
	}
	reading.Wait()
	return errors.Join(found[:min(3, len(found))]...)
}
