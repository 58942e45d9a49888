package changes_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestNothingToDo: what is called with nothing to do sends nothing.
func TestNothingToDo(t *testing.T) {
	env := newObservedTable(t)
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	if err := c.CheckTable(t.Context(), "t"); err != nil {
		t.Fatal(err)
	}
	before := len(faults.Calls())
	for name, do := range map[string]func() error{
		"Notify":             func() error { return changes.Notify(t.Context(), c) },
		"ClearNotifications": func() error { return changes.ClearNotifications(t.Context(), c) },
		"Enter":              func() error { return changes.Enter(t.Context(), c, 1) },
		"a cell without anything to remove": func() error {
			return changes.ClearNotifications(t.Context(), c, changes.Cleared{Cell: observedCell})
		},
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if calls := faults.Calls(); len(calls) != before {
			t.Errorf("%s sent %v", name, calls[before:])
		}
	}
}

// TestClearedExactly: notify cells up to a timestamp and the failures of some observers are removed, and nothing
// else of the row.
func TestClearedExactly(t *testing.T) {
	env := newObservedTable(t)
	key := observedCell.Column().Key()
	put := func() {
		t.Helper()
		m := bigtable.NewMutation()
		m.DeleteRow()
		m.Set(format.NotifyFamily, key, 0, nil)
		for _, ts := range []tso.Timestamp{5e14, 5e14 + 1, 5e14 + 2} {
			m.Set(format.NotifyFamily, key, ts.Cell(), nil)
		}
		for _, id := range []string{"o", "p"} {
			m.Set(format.NotifyFamily, format.FailureQualifier(id, observedCell.Column()), 0, nil)
		}
		m.Set(format.NotifyFamily, "f:other", tso.Timestamp(5e14).Cell(), nil)
		if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		upTo     tso.Timestamp
		failures []string
		want     []string
	}{
		{0, []string{"o"}, []string{":p:f:q 0", "f:other 500000000000000", "f:q 0", "f:q 500000000000000", "f:q 500000000000001", "f:q 500000000000002"}},
		{1, nil, []string{":o:f:q 0", ":p:f:q 0", "f:other 500000000000000", "f:q 500000000000000", "f:q 500000000000001", "f:q 500000000000002"}},
		{5e14 + 1, []string{"o", "p"}, []string{"f:other 500000000000000", "f:q 500000000000002"}},
	} {
		put()
		if err := changes.ClearNotifications(t.Context(), env.Client, changes.Cleared{Cell: observedCell, UpTo: tt.upTo, Failures: tt.failures}); err != nil {
			t.Fatal(err)
		}
		row, err := env.Bigtable.Open("t").ReadRow(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, item := range row[format.NotifyFamily] {
			left = append(left, item.Column[len(format.NotifyFamily)+1:]+" "+tso.FromCell(item.Timestamp).String())
		}
		slices.Sort(left)
		if d := cmp.Diff(tt.want, left); d != "" {
			t.Errorf("up to %d (-want +got):\n%s", tt.upTo, d)
		}
	}
	m := bigtable.NewMutation()
	m.DeleteRow()
	if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
}

// TestEnteredRows: each row that the journal names is returned once, in order, and only those of the table.
func TestEnteredRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		cell := func(table, row, qualifier string) txn.Cell {
			return txn.Cell{Table: table, Row: row, Family: "f", Qualifier: qualifier}
		}
		for _, table := range []string{"a", "b"} {
			env.CreateTable(table, "f")
			if err := changes.RegisterObserver(t.Context(), env.Client, table, cell("", "", "q").Column(), "o", false); err != nil {
				t.Fatal(err)
			}
		}
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := changes.Enter(t.Context(), env.Client, ts, cell("a", "y", "q"), cell("a", "x", "q"), cell("a", "y", "p"), cell("b", "z", "q")); err != nil {
			t.Fatal(err)
		}
		for table, want := range map[string]bigtable.RowList{"a": {"x", "y"}, "b": {"z"}, "c": nil} {
			if got, err := changes.EnteredRows(t.Context(), env.Client, table); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v", table, got, err)
			}
		}
	})
}

// TestTrailExactly: the runs that led to a change, the last one first, and at most as many as asked for.
func TestTrailExactly(t *testing.T) {
	env := newObservedTable(t)
	run := func(from, to string) (hop changes.Hop) {
		t.Helper()
		cell := observedCell
		cell.Row = from
		commit, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			o, err := changes.Observe(ctx, tx, cell)
			if err != nil {
				return err
			}
			changes.Acknowledge(tx, o, "o")
			hop = changes.Hop{Observer: "o", Cell: cell, StartTS: tx.StartTS()}
			return set("t", to)(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		hop.CommitTS = commit
		return hop
	}
	if _, err := env.Client.Update(t.Context(), set("t", "a")); err != nil {
		t.Fatal(err)
	}
	first, second := run("a", "b"), run("b", "r")
	run("a", "b") // later than the second one
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	o := observe(t, tx)
	for n, want := range map[int][]changes.Hop{0: nil, 1: {second}, 2: {second, first}, 9: {second, first}} {
		got, err := changes.Trail(t.Context(), env.Client, o, n)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("at most %d: %v (-want +got):\n%s", n, err, d)
		}
	}
}
