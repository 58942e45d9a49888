package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestFiltersOfCommits: which cells of a row each filter matches. Column f:q has cells of transactions
// that started at 5 and committed at 7, and so on; f:r has other ones.
func TestFiltersOfCommits(t *testing.T) {
	table := filterTable(t)
	q, r := format.Column{Family: "f", Qualifier: "q"}, format.Column{Family: "f", Qualifier: "r"}
	at := func(ts tso.Timestamp) bigtable.Timestamp { return (filterBase + ts).Cell() }
	cell := format.Cell{Table: "t", Row: "row", Family: "f", Qualifier: "q"}
	m := bigtable.NewMutation()
	for _, c := range []format.Column{q, r} {
		for _, ts := range []tso.Timestamp{4, 5, 6} {
			m.Set(format.LockFamily, c.Key(), at(ts), nil)
			m.Set("f", c.Qualifier, at(ts), nil)
			family, value := format.WriteRecord{StartTS: filterBase + ts, Kind: format.KindPut, Primary: cell}.Encode(cell)
			m.Set(family, c.Key(), at(ts+2), value)
			m.Set(format.MarkFamily, c.Key(), at(ts), format.EncodeRollback(filterBase+ts))
		}
	}
	if err := table.Apply(t.Context(), "row", m); err != nil {
		t.Fatal(err)
	}
	both, one := []format.Column{q, r}, []format.Column{q}
	const at5 = filterBase + 5
	column := func(c format.Column) Selection { return Selection{Columns: []format.Column{c}} }
	for _, tt := range []struct {
		name   string
		filter bigtable.Filter
		want   string
	}{
		{"LockAt", LockAt(q, at5), "_lock:f:q@5"},
		{"RecordsOf", RecordsOf(q, at5), "_mark:f:q@5 _write:f:q@7"},
		{"Conflicts", Conflicts(one, at5), "_lock:f:q@4 _lock:f:q@5 _lock:f:q@6 _mark:f:q@5 _mark:f:q@6 _write:f:q@6 _write:f:q@7 _write:f:q@8"},
		{"Conflicts of two", Conflicts(both, at5), "_lock:f:q@4 _lock:f:q@5 _lock:f:q@6 _lock:f:r@4 _lock:f:r@5 _lock:f:r@6 _mark:f:q@5 _mark:f:q@6 _mark:f:r@5 _mark:f:r@6 _write:f:q@6 _write:f:q@7 _write:f:q@8 _write:f:r@6 _write:f:r@7 _write:f:r@8"},
		{"Conflicts above", Conflicts(one, filterBase+8), "_lock:f:q@4 _lock:f:q@5 _lock:f:q@6 _write:f:q@8"},
		{"AnyConflict", AnyConflict(one, at5), "_lock:f:q@6 _mark:f:q@6 _write:f:q@8"},
		{"PrewriteConflict, exact", PrewriteConflict(one, at5, true), "_lock:f:q@6 _mark:f:q@6 _write:f:q@8"},
		{"PrewriteConflict", PrewriteConflict(one, filterBase+8, false), "_lock:f:q@4 _lock:f:q@5 _lock:f:q@6 _write:f:q@8 _write:f:r@8"},
		{"AnythingSince", AnythingSince(both, filterBase+7), "_lock:f:q@4 _lock:f:q@5 _lock:f:q@6 _lock:f:r@4 _lock:f:r@5 _lock:f:r@6 _write:f:q@7 _write:f:q@8 _write:f:r@7 _write:f:r@8"},
		{"NewestConflicts", NewestConflicts(one, at5), "_lock:f:q@6 _mark:f:q@5 _mark:f:q@6 _mark:f:r@5 _write:f:q@8"},
		{"AnyConflictInRow", AnyConflictInRow(at5), "_lock:f:q@6 _lock:f:r@6 _mark:f:q@6 _mark:f:r@6 _write:f:q@8 _write:f:r@8"},
		{"OutcomeCells", OutcomeCells(q, at5), "_lock:f:q@5 _mark:f:q@5 _write:f:q@7"},
		{"Undecided", Undecided(q, at5, filterBase+7), "_lock:f:q@5 _mark:f:q@5 _write:f:q@7 _write:f:q@8"},
		{"Undecided, later", Undecided(q, at5, filterBase+6), "_lock:f:q@5 _mark:f:q@5 _mark:f:q@6 _write:f:q@6 _write:f:q@7 _write:f:q@8"},
		{"UpTo", Chain(WholeFamily("f"), Interleave(UpTo(at5))), "f:q@4 f:q@5 f:r@4 f:r@5"},
		{"From", Chain(WholeFamily("f"), Interleave(From(at5))), "f:q@5 f:q@6 f:r@5 f:r@6"},
		{"At", Chain(WholeFamily("f"), Interleave(At(at5))), "f:q@5 f:r@5"},
		{"Newest of a column", column(q).Newest(nil), "_lock:f:q@6 _write:f:q@8 f:q@6"},
		{"Newest of keys", Selection{Columns: one, KeysOnly: true}.Newest(nil), "_lock:f:q@6 _write:f:q@8 f:q@6"},
		{"Newest of columns", Selection{Columns: both}.Newest(nil), "_lock:f:q@6 _lock:f:r@6 _write:f:q@8 _write:f:r@8 f:q@6 f:r@6"},
		{"Newest of everything", Selection{}.Newest([]string{"f"}), "_lock:f:q@6 _lock:f:r@6 _write:f:q@8 _write:f:r@8 f:q@6 f:r@6"},
	} {
		row, err := table.ReadRow(t.Context(), "row", bigtable.RowFilter(tt.filter))
		if got := strings.Join(slices.Compact(cells(row)), " "); err != nil || got != tt.want {
			t.Errorf("%s: %s, %v\nwant %s", tt.name, got, err, tt.want)
		}
	}
}

// TestSelectionCost: the cost is at least the size of the names in the filter, and counts each part of
// the selection.
func TestSelectionCost(t *testing.T) {
	column := format.Column{Family: "ff", Qualifier: "qqq"}
	for _, tt := range []struct {
		sel  Selection
		want int
	}{
		{Selection{}, 160},
		{Selection{Columns: []format.Column{column}}, 160 + 3*(2*6+40)},
		{Selection{Columns: []format.Column{column, column}, KeysOnly: true}, 160 + 2*(3*(2*6+40)+16)},
		{Selection{Ranges: []QualifierRange{{"ff", "a", "bcd"}}}, 160 + 3*(2*3+40+1+3)},
		{Selection{Ranges: []QualifierRange{{"ff", "a", "bcd"}, {"g", "", ""}}, KeysOnly: true}, 160 + 3*(2*3+40+1+3) + 16 + 3*(2*2+40) + 16},
	} {
		if got := tt.sel.Cost(); got != tt.want {
			t.Errorf("%+v costs %d, want %d", tt.sel, got, tt.want)
		}
	}
	if got := (Selection{Ranges: []QualifierRange{{"g", "", ""}, {"f", "", ""}}, Columns: []format.Column{{Family: "h"}, {Family: "f"}}}).allFamilies(); !slices.Equal(got, []string{"f", "g", "h"}) {
		t.Errorf("families %v", got)
	}
}

// TestCommitMutations: what a commit and a rollback of a cell change, and how many changes that is.
func TestCommitMutations(t *testing.T) {
	table := filterTable(t)
	at := func(ts tso.Timestamp) bigtable.Timestamp { return (filterBase + ts).Cell() }
	cell := format.Cell{Table: "t", Row: "row", Family: "f", Qualifier: "q"}
	start := filterBase + 5
	lock := &format.Lock{Cell: cell, Primary: cell, StartTS: start, Kind: format.KindPut}
	for _, tt := range []struct {
		name   string
		change func(*bigtable.Mutation) int
		ops    int
		want   string
	}{
		{"commit", func(m *bigtable.Mutation) int { return AddCommit(m, lock, filterBase+8, 0) }, 2, "_lock:f:q@4 _lock:f:q@6 _write:f:q@8 f:q@4 f:q@5 f:q@6"},
		{"commit, observed", func(m *bigtable.Mutation) int {
			l := *lock
			l.Observed = true
			return AddCommit(m, &l, filterBase+8, 0)
		}, 3, "_lock:f:q@4 _lock:f:q@6 _notify:f:q@8 _write:f:q@8 f:q@4 f:q@5 f:q@6"},
		{"roll back", func(m *bigtable.Mutation) int { RemoveLockAndData(m, cell.Column(), start); return 0 }, 0, "_lock:f:q@4 _lock:f:q@6 f:q@4 f:q@6"},
	} {
		m := bigtable.NewMutation()
		for _, ts := range []tso.Timestamp{4, 5, 6} {
			m.Set(format.LockFamily, "f:q", at(ts), nil)
			m.Set("f", "q", at(ts), nil)
		}
		if err := table.Apply(t.Context(), tt.name, m); err != nil {
			t.Fatal(err)
		}
		m = bigtable.NewMutation()
		ops := tt.change(m)
		if err := table.Apply(t.Context(), tt.name, m); err != nil {
			t.Fatal(err)
		}
		row, err := table.ReadRow(t.Context(), tt.name)
		if got := strings.Join(cells(row), " "); err != nil || got != tt.want || ops != tt.ops {
			t.Errorf("%s: %d changes, %s, %v\nwant %d, %s", tt.name, ops, got, err, tt.ops, tt.want)
		}
	}
}

// TestWide: a prewrite names at most eight columns, and no more than fit into a filter.
func TestWide(t *testing.T) {
	row := func(columns, length int) *RowWrites {
		r := &RowWrites{Table: &Table{Name: "t"}, Row: "r"}
		for i := range columns {
			r.Writes = append(r.Writes, &Write{Cell: format.Cell{Table: "t", Row: "r", Family: "f", Qualifier: fmt.Sprintf("%0*d", length, i)}, Observed: i%2 == 1, Value: make([]byte, i)})
		}
		return r
	}
	fits := (FilterBudget/2/3 - 40) / 2 // of two columns
	for _, tt := range []struct {
		columns, length int
		want            bool
	}{{0, 1, false}, {1, 1, false}, {8, 1, false}, {9, 1, true}, {2, fits - 2, false}, {2, fits, true}, {1, FilterBudget/6 - 24, false}, {1, FilterBudget/6 - 20, true}} {
		r := row(tt.columns, tt.length)
		if r.Wide() != tt.want {
			t.Errorf("%d columns of %d bytes: wide %t", tt.columns, tt.length, !tt.want)
		}
	}
	r := row(4, 1)
	if observed := r.Observed(); len(observed) != 2 || observed[0].Qualifier != "1" || observed[1].Qualifier != "3" {
		t.Errorf("observed %v", observed)
	}
	if cols := r.Columns(); len(cols) != 4 || cols[3] != r.Writes[3].Cell.Column() {
		t.Errorf("columns %v", cols)
	}
}

// TestWithout: the rest of ranges has the keys that are in them and not in those that are done.
func TestWithout(t *testing.T) {
	keys := []string{"", "a", "b", "c", "d", "e"}
	ranges := []KeyRange{{"", ""}}
	for i, start := range keys {
		for _, end := range append(keys[i+1:], "") {
			ranges = append(ranges, KeyRange{start, end})
		}
	}
	has := func(all []KeyRange, key string) bool {
		return slices.ContainsFunc(all, func(r KeyRange) bool { return r.contains(key) })
	}
	for _, a := range ranges {
		for _, b := range ranges {
			for _, c := range ranges {
				rest := Without([]KeyRange{a, b}, []KeyRange{c, {"c", "c\x00"}})
				for _, r := range rest {
					if r.empty() {
						t.Fatalf("%q and %q without %q: %q", a, b, c, rest)
					}
				}
				for _, key := range []string{"", "a", "a0", "b", "b0", "c", "c\x00", "d", "d0", "e", "f"} {
					if want := (a.contains(key) || b.contains(key)) && !c.contains(key) && key != "c"; has(rest, key) != want {
						t.Fatalf("%q and %q without %q: %q, has %q %t", a, b, c, rest, key, !want)
					}
				}
			}
		}
	}
	// A range that is not touched is not divided.
	if got := Without([]KeyRange{{"a", "b"}, {"c", ""}}, []KeyRange{{"b", "c"}, {"", "a"}}); !slices.Equal(got, []KeyRange{{"a", "b"}, {"c", ""}}) {
		t.Errorf("%q", got)
	}
}

// TestFindColumn: the cell of a column, and none of another column.
func TestFindColumn(t *testing.T) {
	items := []bigtable.ReadItem{{Column: "f:a", Value: []byte("1")}, {Column: "f:c", Value: []byte("2")}}
	for column, want := range map[string]string{"f:a": "1", "f:b": "", "f:c": "2", "f:d": ""} {
		if item, ok := FindColumn(items, column); ok != (want != "") || string(item.Value) != want {
			t.Errorf("%s: %v, %t", column, item, ok)
		}
	}
}
