package changes_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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
		"SweepPositions":     func() error { _, err := changes.SweepPositions(t.Context(), c, nil); return err },
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

// sameHash are tables whose journal entries are in the same rows.
var sameHash = []string{"t26821", "t49091"}

// TestEnteredRows: each row that the journal names is returned once, in order, and only those of the table.
func TestEnteredRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		cell := func(table, row, qualifier string) txn.Cell {
			return txn.Cell{Table: table, Row: row, Family: "f", Qualifier: qualifier}
		}
		for _, table := range sameHash {
			env.CreateTable(table, "f")
			if err := changes.RegisterObserver(t.Context(), env.Client, table, cell("", "", "q").Column(), "o", false); err != nil {
				t.Fatal(err)
			}
		}
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := changes.Enter(t.Context(), env.Client, ts, cell(sameHash[0], "y", "q"), cell(sameHash[0], "x", "q"), cell(sameHash[0], "y", "p"), cell(sameHash[1], "z", "q")); err != nil {
			t.Fatal(err)
		}
		for table, want := range map[string]bigtable.RowList{sameHash[0]: {"x", "y"}, sameHash[1]: {"z"}, "c": nil} {
			if got, err := changes.EnteredRows(t.Context(), env.Client, table); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, %v", table, got, err)
			}
		}
	})
}

// TestTrailExactly: the runs that led to a change, the last one first, and at most as many as asked for.
func TestTrailExactly(t *testing.T) {
	env := newObservedTable(t, txntest.WithoutCheck())
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
	// What led to the second run was collected, or is damaged.
	remove := func(m *bigtable.Mutation) {
		t.Helper()
		if err := env.Bigtable.Open("t").Apply(t.Context(), "b", m); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		m := bigtable.NewMutation()
		m.DeleteTimestampRange(format.WriteFamily, "f:q", 0, (second.StartTS + 1).Cell())
		m.Set(format.WriteFamily, "f:q", first.CommitTS.Cell(), []byte("\xff"))
		remove(m)
		if got, err := changes.Trail(t.Context(), env.Client, o, 9); !errors.Is(err, txn.ErrCorrupt) || !slices.Equal(got, []changes.Hop{second}) {
			t.Errorf("damaged: %+v, %v", got, err)
		}
		m = bigtable.NewMutation()
		m.DeleteTimestampRange(format.WriteFamily, "f:q", 0, (second.StartTS + 1).Cell())
		remove(m)
		if got, err := changes.Trail(t.Context(), env.Client, o, 9); err != nil || !slices.Equal(got, []changes.Hop{second}) {
			t.Errorf("collected: %+v, %v", got, err)
		}
	}()
	for n, want := range map[int][]changes.Hop{0: nil, 1: {second}, 2: {second, first}, 9: {second, first}} {
		got, err := changes.Trail(t.Context(), env.Client, o, n)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			t.Errorf("at most %d: %v (-want +got):\n%s", n, err, d)
		}
	}
}

// TestUnfinishedAt: a run since a timestamp says that something was left at it, if the change that it
// acknowledged is from before.
func TestUnfinishedAt(t *testing.T) {
	env := newObservedTable(t)
	change := func() {
		t.Helper()
		if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
			t.Fatal(err)
		}
	}
	at := func() tso.Timestamp {
		t.Helper()
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	run := func(meanwhile func()) (ran tso.Timestamp) {
		t.Helper()
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		o := observe(t, tx)
		changes.Acknowledge(tx, o, "o")
		meanwhile()
		if ran, err = tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := changes.ClearNotifications(t.Context(), env.Client, changes.Cleared{Cell: observedCell, UpTo: o.KnownUpTo(), ChangeTS: o.KnownChange()}); err != nil {
			t.Fatal(err)
		}
		return ran
	}
	left := func(when string, asOf tso.Timestamp, want ...changes.Unfinished) {
		t.Helper()
		var got []changes.Unfinished
		for u, err := range changes.FindUnfinished(t.Context(), env.Client, "t", nil, asOf, true) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, u)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", when, d)
		}
	}
	start := at()
	change()
	changed := at()
	var second tso.Timestamp
	ran := run(func() { change(); second = at() })
	left("before any change", start)
	left("after the first change", changed, changes.Unfinished{Cell: observedCell, TS: ran, Ran: true})
	now := at()
	if second >= ran {
		t.Fatalf("the run was committed at %d, before the second change", ran)
	}
	pending := changes.Unfinished{Cell: observedCell}
	for n, err := range changes.Notifications(t.Context(), env.Client, "t", nil) {
		if err != nil || len(n.Triggers) != 1 {
			t.Fatal(n, err)
		}
		pending.TS = n.Triggers[0].TS
	}
	left("while the second change is pending", now, pending)
	run(func() {})
	done := at()
	change()
	again := run(func() {})
	left("while nothing was pending", done)
	left("after everything", again)
}

// TestPendingOfTables: only notifications of the tables that were asked for are found.
func TestPendingOfTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		for _, table := range sameHash {
			env.CreateTable(table, "f")
			for _, id := range []string{"z", "o"} {
				if err := changes.RegisterObserver(t.Context(), env.Client, table, observedCell.Column(), id, false); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := env.Client.Update(t.Context(), set(table, "r")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		for _, tables := range [][]string{sameHash[:1], sameHash[1:], sameHash} {
			var found []string
			for n, err := range changes.Pending(t.Context(), env.Client, tables, changes.Part{Of: 1}) {
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, n.Cell.Table)
			}
			slices.Sort(found)
			if !slices.Equal(found, tables) {
				t.Errorf("in %v: %v", tables, found)
			}
		}
		tx, err := env.Client.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		cell := observedCell
		cell.Table = sameHash[0]
		if o, err := changes.Observe(t.Context(), tx, cell); err != nil || !slices.Equal(o.Observers, []string{"o", "z"}) {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// TestQuietObservation: to observe a cell that no observer has acknowledged, or that has only a plain value, logs no
// warning, and the plain value is what an observer saw before, too.
func TestQuietObservation(t *testing.T) {
	env := newObservedTable(t)
	var logged bytes.Buffer
	c := env.NewClient(txn.Config{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	previous := func(want string, acks int) {
		t.Helper()
		if _, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			o := observe(t, tx)
			if len(o.Acks) != acks {
				t.Errorf("acknowledgments: %v", o.Acks)
			}
			v, ok, err := changes.Previous(ctx, tx, o, "o")
			if string(v) != want || ok != (want != "") {
				t.Errorf("the previous value is %q, %t; want %q", v, ok, want)
			}
			changes.Acknowledge(tx, o, "o")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	previous("", 0)
	m := bigtable.NewMutation()
	m.Set("f", "q", bigtable.Time(time.Now().Add(time.Hour)), []byte("plain")) // its clock is fast
	if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
	previous("plain", 1)
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if logged.Len() > 0 {
		t.Errorf("logged: %s", &logged)
	}
}

// TestPendingBesideALiveLock: while a live transaction has locked a cell, its old entry costs two requests: one for
// the journal, and one for the rows that it names.
func TestPendingBesideALiveLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("t", "f")
		if err := changes.RegisterObserver(t.Context(), env.Client, "t", observedCell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		ts, err := env.Client.Timestamp(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := changes.Enter(t.Context(), env.Client, ts, observedCell); err != nil {
			t.Fatal(err)
		}
		lock := bigtable.NewMutation()
		lock.Set(format.LockFamily, observedCell.Column().Key(), ts.Cell(), format.EncodeLock(&format.Lock{Cell: observedCell, Primary: observedCell, Kind: format.KindPut, StartTS: ts, TTL: time.Hour, Observed: true}))
		if err := env.Bigtable.Open("t").Apply(t.Context(), "r", lock); err != nil {
			t.Fatal(err)
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		if _, err := c.Timestamp(t.Context()); err != nil { // it knows how old entries are
			t.Fatal(err)
		}
		<-time.After(2 * time.Minute)
		pending := func() (sent int) {
			t.Helper()
			before := len(faults.Calls())
			for n, err := range changes.Pending(t.Context(), c, []string{"t"}, changes.Part{Of: 1}) {
				t.Errorf("%+v, %v", n, err)
			}
			return len(faults.Calls()) - before
		}
		pending() // opens the table
		if sent := pending(); sent != 2 {
			t.Errorf("%d requests, want 2", sent)
		}
		unlock := bigtable.NewMutation()
		unlock.DeleteCellsInColumn(format.LockFamily, observedCell.Column().Key())
		if err := env.Bigtable.Open("t").Apply(t.Context(), "r", unlock); err != nil {
			t.Fatal(err)
		}
		if sent := pending(); sent <= 2 {
			t.Errorf("%d requests without the lock, want that the entry is examined", sent)
		}
	})
}

// TestObservationAfterTheEnd: a transaction that has ended observes nothing, and sends nothing.
func TestObservationAfterTheEnd(t *testing.T) {
	env := newObservedTable(t)
	if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
		t.Fatal(err)
	}
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := observe(t, tx)
	o.Acks["o"] = o.StartTS
	tx.Rollback()
	before := len(faults.Calls())
	if o, err := changes.Observe(t.Context(), tx, observedCell); err == nil {
		t.Errorf("observed %+v", o)
	}
	if v, _, err := changes.Previous(t.Context(), tx, o, "o"); err == nil {
		t.Errorf("the previous value is %q", v)
	}
	if n := len(faults.Calls()) - before; n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestJournaledTables: of each table it is known whether its commits have journal entries.
func TestJournaledTables(t *testing.T) {
	for _, want := range []bool{true, false} {
		var opts []txntest.Option
		if !want {
			opts = append(opts, txntest.WithoutJournal())
		}
		env := txntest.New(t, opts...)
		env.CreateTable("t", "f")
		if got, err := changes.Journaled(t.Context(), env.Client, "t"); got != want || err != nil {
			t.Errorf("journaled: %t, %v; want %t", got, err, want)
		}
		if got, err := changes.Journaled(t.Context(), env.Client, "none"); got || !errors.Is(err, txn.ErrNotInitialized) {
			t.Errorf("a table that does not exist: %t, %v", got, err)
		}
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
		if err := changes.ClearNotifications(t.Context(), c, changes.Cleared{Cell: observedCell, UpTo: 1}); err != nil {
			t.Error(err)
		}
		if n := faults.Count()[txntest.StepJournalClear]; (n == 1) != want || n > 1 {
			t.Errorf("%d removals of entries; journaled: %t", n, want)
		}
	}
}
