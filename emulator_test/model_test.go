package emulator_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A modelVersion is one version of one cell.
type modelVersion struct {
	at    tso.Timestamp      // commit_ts; 0 for data from before the adoption
	shown bigtable.Timestamp // the expected ReadItem.Timestamp
	value []byte
	gone  bool
}

// A modelTable is a table in memory, as transactions see it.
type modelTable map[string]map[txn.Column][]modelVersion

func (m modelTable) put(row string, c txn.Column, v modelVersion) {
	if m[row] == nil {
		m[row] = map[txn.Column][]modelVersion{}
	}
	m[row][c] = append(m[row][c], v)
}

// A modelView is the state at a timestamp, together with a transaction's own writes.
type modelView struct {
	table modelTable
	at    tso.Timestamp
	own   modelTable // one version of each cell
	// expiries are how long the values of a family last, if not without limit.
	expiries map[string]time.Duration
	// hides, if not nil, reports whether a version has expired.
	hides func(row string, c txn.Column, v modelVersion) bool
}

func (v modelView) cell(row string, c txn.Column) (modelVersion, bool) {
	if own := v.own[row][c]; len(own) > 0 {
		return own[0], !own[0].gone
	}
	versions := v.table[row][c]
	for i := len(versions) - 1; i >= 0; i-- {
		if versions[i].at <= v.at {
			after := v.expiries[c.Family]
			if after > 0 && int64(v.at)-int64(versions[i].shown) >= after.Microseconds() {
				break
			}
			if v.hides != nil && !versions[i].gone && v.hides(row, c, versions[i]) {
				break
			}
			return versions[i], !versions[i].gone
		}
	}
	return modelVersion{}, false
}

// columns returns every column that a row ever had.
func (v modelView) columns(row string) []txn.Column {
	all := map[txn.Column]bool{}
	for _, m := range []modelTable{v.table, v.own} {
		for c := range m[row] {
			all[c] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b txn.Column) int {
		if c := strings.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		return strings.Compare(a.Qualifier, b.Qualifier)
	})
}

// A query is one read of rows.
type query struct {
	rows     bigtable.RowSet
	contains func(string) bool
	text     string
	columns  []txn.Column
	families []string
	// start and end are Qualifiers of the family qualifiersOf.
	qualifiersOf, start, end string
	keysOnly                 bool
	cellsPerRow              int
	limit                    int
	reverse                  bool
}

func (q query) String() string {
	s := fmt.Sprintf("%s, columns %q, families %q, limit %d", q.text, q.columns, q.families, q.limit)
	if q.qualifiersOf != "" {
		s += fmt.Sprintf(", qualifiers of %q from %q to %q", q.qualifiersOf, q.start, q.end)
	}
	if q.cellsPerRow > 0 {
		s += fmt.Sprintf(", %d cells a row", q.cellsPerRow)
	}
	if q.keysOnly {
		s += ", keys only"
	}
	if q.reverse {
		s += ", reverse"
	}
	return s
}

func (q query) selects(c txn.Column) bool {
	return len(q.columns)+len(q.families)+len(q.qualifiersOf) == 0 || slices.Contains(q.columns, c) || slices.Contains(q.families, c.Family) ||
		c.Family == q.qualifiersOf && c.Qualifier >= q.start && (q.end == "" || c.Qualifier < q.end)
}

// isPoint reports whether the query names all its columns.
func (q query) isPoint() bool { return len(q.families)+len(q.qualifiersOf) == 0 && len(q.columns) > 0 }

func (q query) selection() []txn.ReadOption {
	var opts []txn.ReadOption
	if len(q.columns) > 0 {
		opts = append(opts, txn.Columns(q.columns...))
	}
	if len(q.families) > 0 {
		opts = append(opts, txn.Families(q.families...))
	}
	if q.qualifiersOf != "" {
		opts = append(opts, txn.Qualifiers(q.qualifiersOf, q.start, q.end))
	}
	if q.keysOnly {
		opts = append(opts, txn.KeysOnly())
	}
	if q.cellsPerRow > 0 {
		opts = append(opts, txn.CellsPerRow(q.cellsPerRow))
	}
	return opts
}

func (q query) options() []txn.ReadOption {
	opts := q.selection()
	if q.limit > 0 {
		opts = append(opts, txn.Limit(q.limit))
	}
	if q.reverse {
		opts = append(opts, txn.Reverse())
	}
	return opts
}

// readRow returns one row of the model as text, with a line for each cell.
func (v modelView) readRow(row string, q query) string {
	var b strings.Builder
	cells := 0
	for _, c := range v.columns(row) {
		if !q.selects(c) {
			continue
		}
		if ver, ok := v.cell(row, c); ok {
			if cells++; q.cellsPerRow > 0 && cells > q.cellsPerRow {
				break
			}
			if q.keysOnly {
				ver.value = nil
			}
			fmt.Fprintf(&b, "%q %q %q @%d\n", row, c.Family+":"+c.Qualifier, ver.value, ver.shown)
		}
	}
	return b.String()
}

func (v modelView) readRows(q query) []string {
	keys := map[string]bool{}
	for _, m := range []modelTable{v.table, v.own} {
		for row := range m {
			keys[row] = q.contains(row)
		}
	}
	order := slices.Sorted(maps.Keys(keys))
	if q.reverse {
		slices.Reverse(order)
	}
	var rows []string
	for _, row := range order {
		if !keys[row] {
			continue
		}
		if s := v.readRow(row, q); s != "" && (q.limit == 0 || len(rows) < q.limit) {
			rows = append(rows, s)
		}
	}
	return rows
}

// rowText formats a row that was read as modelView.readRow does.
func rowText(r bigtable.Row) string {
	var b strings.Builder
	for _, family := range slices.Sorted(maps.Keys(r)) {
		for _, item := range r[family] {
			fmt.Fprintf(&b, "%q %q %q @%d\n", item.Row, item.Column, item.Value, item.Timestamp)
		}
	}
	return b.String()
}

// check runs the query through view and compares the result with the model.
func (q query) check(ctx context.Context, t *rapid.T, view *txn.View, model modelView) {
	var got []string
	for row, err := range view.ReadRows(ctx, q.rows, q.options()...) {
		if err != nil {
			t.Fatalf("%v: %v", q, err)
		}
		got = append(got, rowText(row))
	}
	if d := cmp.Diff(model.readRows(q), got); d != "" {
		t.Fatalf("%v at %d (-want +got):\n%s", q, model.at, d)
	}
}

// checkRow reads one row, and some of its cells by themselves.
func (q query) checkRow(ctx context.Context, t *rapid.T, view *txn.View, model modelView, row string, cells []txn.Column) {
	r, err := view.ReadRow(ctx, row, q.selection()...)
	if err != nil {
		t.Fatalf("row %q, %v: %v", row, q, err)
	}
	if d := cmp.Diff(model.readRow(row, q), rowText(r)); d != "" {
		t.Fatalf("row %q, %v at %d (-want +got):\n%s", row, q, model.at, d)
	}
	for _, c := range cells {
		got, ok, err := view.Get(ctx, row, c.Family, c.Qualifier)
		if err != nil {
			t.Fatalf("get %q %q: %v", row, c, err)
		}
		want, present := model.cell(row, c)
		if ok != present || ok && (got == nil || !bytes.Equal(got, want.value)) {
			t.Fatalf("get %q %q at %d: %q, %v; want %q, %v", row, c, model.at, got, ok, want.value, present)
		}
	}
}

// queries generates reads of keys, which need not exist.
func queries(keys *rapid.Generator[string], columns []txn.Column, families []string, maxLimit int) *rapid.Generator[query] {
	return rapid.Custom(func(t *rapid.T) query {
		q := rowSets(keys).Draw(t, "rows")
		if rapid.Bool().Draw(t, "choose") {
			q.columns = rapid.SliceOfN(rapid.SampledFrom(columns), 0, 3).Draw(t, "columns")
			q.families = rapid.SliceOfN(rapid.SampledFrom(families), 0, 2).Draw(t, "families")
		}
		if rapid.IntRange(0, 2).Draw(t, "choose qualifiers") == 0 {
			q.qualifiersOf = rapid.SampledFrom(families).Draw(t, "qualifiers of")
			q.start, q.end = rapid.SampledFrom(columns).Draw(t, "start").Qualifier, rapid.SampledFrom(columns).Draw(t, "end").Qualifier
			if q.start >= q.end {
				q.end = txn.PrefixEnd(q.start) // all that begin with start
			}
		}
		q.keysOnly = rapid.IntRange(0, 3).Draw(t, "keys only") == 0
		if rapid.IntRange(0, 2).Draw(t, "first cells") == 0 {
			q.cellsPerRow = rapid.IntRange(1, 4).Draw(t, "cells per row")
		}
		if rapid.Bool().Draw(t, "limited") {
			q.limit = rapid.IntRange(1, maxLimit).Draw(t, "limit")
		}
		q.reverse = rapid.Bool().Draw(t, "reverse")
		return q
	})
}

// rowSets generates row sets of every kind, together with a function that says what
// they contain.
func rowSets(keys *rapid.Generator[string]) *rapid.Generator[query] {
	return rapid.Custom(func(t *rapid.T) query {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return query{rows: nil, contains: func(string) bool { return true }, text: "all rows"}
		case 1:
			list := rapid.SliceOfN(keys, 0, 6).Draw(t, "list")
			return query{rows: bigtable.RowList(list), contains: func(k string) bool { return slices.Contains(list, k) }, text: fmt.Sprintf("list %q", list)}
		case 2:
			r, contains := rowRange(t, keys)
			return query{rows: r, contains: contains, text: r.String()}
		}
		var list bigtable.RowRangeList
		var in []func(string) bool
		text := "ranges"
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			r, contains := rowRange(t, keys)
			list, in, text = append(list, r), append(in, contains), text+" "+r.String()
		}
		return query{rows: list, contains: func(k string) bool {
			return slices.ContainsFunc(in, func(f func(string) bool) bool { return f(k) })
		}, text: text}
	})
}

func rowRange(t *rapid.T, keys *rapid.Generator[string]) (bigtable.RowRange, func(string) bool) {
	a, b := keys.Draw(t, "start"), keys.Draw(t, "end")
	switch rapid.IntRange(0, 7).Draw(t, "range") {
	case 0:
		return bigtable.NewClosedOpenRange(a, b), func(k string) bool { return a <= k && k < b }
	case 1:
		return bigtable.NewClosedRange(a, b), func(k string) bool { return a <= k && k <= b }
	case 2:
		return bigtable.NewOpenRange(a, b), func(k string) bool { return a < k && k < b }
	case 3:
		return bigtable.NewOpenClosedRange(a, b), func(k string) bool { return a < k && k <= b }
	case 4:
		return bigtable.InfiniteRange(a), func(k string) bool { return a <= k }
	case 5:
		return bigtable.InfiniteReverseRange(b), func(k string) bool { return k <= b }
	case 6:
		p := a[:rapid.IntRange(0, len(a)).Draw(t, "prefix")]
		return bigtable.PrefixRange(p), func(k string) bool { return strings.HasPrefix(k, p) }
	}
	return bigtable.NewRange(a, b), func(k string) bool { return a <= k && k < b }
}

// A modelTxn is a transaction together with its model.
type modelTxn struct {
	tx    *txn.Txn
	table *txn.Table
	view  modelView
}

func beginModel(ctx context.Context, t *rapid.T, c *txn.Client, name string, m modelTable) *modelTxn {
	tx, err := c.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &modelTxn{tx, tx.Table(name), modelView{table: m, at: tx.StartTS(), own: modelTable{}}}
}

// write buffers one random write.
func (x *modelTxn) write(ctx context.Context, t *rapid.T, keys *rapid.Generator[string], columns []txn.Column) {
	row, c := keys.Draw(t, "row"), rapid.SampledFrom(columns).Draw(t, "column")
	own := func(c txn.Column, v modelVersion) {
		delete(x.view.own[row], c)
		x.view.own.put(row, c, v)
	}
	switch rapid.IntRange(0, 9).Draw(t, "write") {
	case 0:
		for _, c := range x.view.columns(row) {
			if _, ok := x.view.cell(row, c); ok {
				own(c, modelVersion{gone: true})
			}
		}
		if err := x.table.DeleteRow(ctx, row); err != nil {
			t.Fatal(err)
		}
	case 1:
		x.table.Lock(row, c.Family, c.Qualifier)
	case 2, 3, 4:
		own(c, modelVersion{gone: true})
		x.table.Delete(row, c.Family, c.Qualifier)
	default:
		v := rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "value")
		own(c, modelVersion{value: v})
		x.table.Set(row, c.Family, c.Qualifier, v)
	}
}

// commit commits, and applies the writes to the table's model.
func (x *modelTxn) commit(ctx context.Context, t *rapid.T) tso.Timestamp {
	ts, err := x.tx.Commit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for row, cols := range x.view.own {
		for c, v := range cols {
			v[0].at, v[0].shown = ts, bigtable.Timestamp(ts)
			x.view.table.put(row, c, v[0])
		}
	}
	return ts
}

// binaryKeys are short keys of few different bytes, so that many are equal, neighbours,
// or prefixes of each other.
func binaryKeys() *rapid.Generator[string] {
	return rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte("\x00ab\xff")), 1, 3), func(b []byte) string { return string(b) })
}

var (
	modelFamilies = []string{"f", "f2", "g"} // one name is a prefix of another
	modelColumns  = []txn.Column{
		{Family: "f", Qualifier: ""},
		{Family: "f", Qualifier: "q"},
		{Family: "f", Qualifier: "q\x00"},
		{Family: "f", Qualifier: "q:r"},
		{Family: "f2", Qualifier: "q"},
		{Family: "f2", Qualifier: "\xff"},
		{Family: "g", Qualifier: ":"},
		{Family: "g", Qualifier: "q/s"},
	}
)

// TestReadsAgainstModel compares every kind of read with the model: in tables with and
// without data from before their adoption, at the timestamp of every commit, and in a
// transaction between its own writes.
func TestReadsAgainstModel(t *testing.T) {
	long.Judged(t)
	long.NotUnderRace(t, "one request after the other")
	env := txntest.New(t, txntest.WithoutQuota())
	ctx := t.Context()
	keys := binaryKeys()
	tables := 0
	rapid.Check(t, func(t *rapid.T) {
		tables++
		name := fmt.Sprintf("t%d", tables)
		model := modelTable{}
		if rapid.Bool().Draw(t, "adopted") {
			adopt(ctx, t, env, name, model, keys)
		}
		env.CreateTable(name, modelFamilies...)
		times := []tso.Timestamp{1e15} // before every commit, in 2001
		for range rapid.IntRange(0, 4).Draw(t, "commits") {
			x := beginModel(ctx, t, env.Client, name, model)
			for range rapid.IntRange(1, 6).Draw(t, "writes") {
				x.write(ctx, t, keys, modelColumns)
			}
			c := x.commit(ctx, t)
			times = append(times, x.tx.StartTS(), c-1, c)
		}
		reads := queries(keys, modelColumns, modelFamilies, 4)
		check := func(t *rapid.T, view *txn.View, m modelView) {
			reads.Draw(t, "query").check(ctx, t, view, m)
			cells := rapid.SliceOfN(rapid.SampledFrom(modelColumns), 1, 2).Draw(t, "cells")
			reads.Draw(t, "row query").checkRow(ctx, t, view, m, keys.Draw(t, "row"), cells)
		}
		for range 3 {
			s, err := env.Client.Snapshot(ctx, txn.At(rapid.SampledFrom(times).Draw(t, "at")))
			if err != nil {
				t.Fatal(err)
			}
			check(t, s.Table(name), modelView{table: model, at: s.ReadTS()})
		}
		x := beginModel(ctx, t, env.Client, name, model)
		defer x.tx.Rollback()
		for range 3 {
			for range rapid.IntRange(0, 3).Draw(t, "writes") {
				x.write(ctx, t, keys, modelColumns)
			}
			check(t, &x.table.View, x.view)
		}
	})
}

// adopt makes a plain table with data in it, and adopts it.
func adopt(ctx context.Context, t *rapid.T, env *txntest.Env, name string, model modelTable, keys *rapid.Generator[string]) {
	if err := env.Admin.CreateTable(ctx, name); err != nil {
		t.Fatal(err)
	}
	for _, f := range modelFamilies {
		if err := env.Admin.CreateColumnFamily(ctx, name, f); err != nil {
			t.Fatal(err)
		}
	}
	tbl := env.Bigtable.OpenTable(name)
	for range rapid.IntRange(0, 6).Draw(t, "plain cells") {
		row, c := keys.Draw(t, "row"), rapid.SampledFrom(modelColumns).Draw(t, "column")
		v := modelVersion{value: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "value")}
		v.shown = bigtable.Timestamp(rapid.SampledFrom([]int64{0, 1, 2, 1.7e12, 1.8e12}).Draw(t, "cell timestamp")) * 1000
		m := bigtable.NewMutation()
		m.Set(c.Family, c.Qualifier, v.shown, v.value)
		if err := tbl.Apply(ctx, row, m); err != nil {
			t.Fatal(err)
		}
		// Of several plain versions, transactions see the latest.
		if old := model[row][c]; len(old) > 0 {
			if old[0].shown > v.shown {
				continue
			}
			delete(model[row], c)
		}
		model.put(row, c, v)
	}
}

// TestPagesAgainstModel scans a table of many pages, with a transaction's own writes in
// and between them. The first page has 256 rows.
func TestPagesAgainstModel(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	t.Parallel()
	const rows = 900
	env := txntest.New(t)
	env.CreateTable("t", "f")
	ctx := t.Context()
	columns := []txn.Column{{Family: "f", Qualifier: "a"}, {Family: "f", Qualifier: "b"}}
	// Keys of the form xx\x00, xx\xff, xx: neighbours of each other.
	key := func(i int) string {
		return fmt.Sprintf("%03d", i/3) + []string{"", "\x00", "\xff"}[i%3]
	}
	model := modelTable{}
	var times []tso.Timestamp
	for round := range 3 {
		own := modelTable{}
		ts, err := env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
			tbl := tx.Table("t")
			for i := range rows {
				c := columns[round%2]
				switch {
				case round == 0 && i%10 < 9, round == 1 && i%3 == 0:
					v := fmt.Append(nil, round)
					tbl.Set(key(i), c.Family, c.Qualifier, v)
					own.put(key(i), c, modelVersion{value: v})
				case round == 2 && i%7 == 0:
					tbl.Delete(key(i), c.Family, c.Qualifier)
					own.put(key(i), c, modelVersion{gone: true})
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for row, cols := range own {
			for c, v := range cols {
				v[0].at, v[0].shown = ts, bigtable.Timestamp(ts)
				model.put(row, c, v[0])
			}
		}
		times = append(times, ts)
	}
	keys := rapid.Map(rapid.IntRange(0, rows-1), key)
	reads := queries(keys, columns, []string{"f"}, rows)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		if n++; long.Reduced() && n > 25 {
			return
		}
		s, err := env.Client.Snapshot(ctx, txn.At(rapid.SampledFrom(times).Draw(t, "at")))
		if err != nil {
			t.Fatal(err)
		}
		reads.Draw(t, "query").check(ctx, t, s.Table("t"), modelView{table: model, at: s.ReadTS()})
		x := beginModel(ctx, t, env.Client, "t", model)
		defer x.tx.Rollback()
		for range rapid.IntRange(0, 12).Draw(t, "writes") {
			x.write(ctx, t, keys, columns)
		}
		reads.Draw(t, "query").check(ctx, t, &x.table.View, x.view)
	})
}
