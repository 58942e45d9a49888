package changes_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Observations says of every notification what Observe says, whether naming the
// columns fits into a filter or not, and also where many runs have prewritten
// an acknowledgment since.
func TestObservations(t *testing.T) {
	for name, observers := range map[string][]string{
		"named":    {"a", "b"},
		"families": manyObservers(60),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			env := txntest.New(t)
			env.CreateTable("docs", "f")
			c := env.Client
			strong, weak := txn.Column{Family: "f", Qualifier: "strong"}, txn.Column{Family: "f", Qualifier: "weak"}
			for _, id := range observers {
				if err := changes.RegisterObserver(ctx, c, "docs", strong, id, false); err != nil {
					t.Fatal(err)
				}
			}
			if err := changes.RegisterObserver(ctx, c, "docs", weak, "w", true); err != nil {
				t.Fatal(err)
			}
			cell := func(row string, col txn.Column) txn.Cell {
				return txn.Cell{Table: "docs", Row: row, Family: col.Family, Qualifier: col.Qualifier}
			}
			plain(t, env, "docs", "old", "f", "strong")
			acknowledge := func(row string, at changes.Observation, ids ...string) {
				t.Helper()
				_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
					seen, err := changes.Observe(ctx, tx, cell(row, strong))
					if at.StartTS != 0 {
						seen = &at
					}
					for _, id := range ids {
						changes.Acknowledge(tx, seen, id)
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, row := range []string{"changed", "half", "done", "dropped"} {
				if _, err := c.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
					tx.Table("docs").Set(row, "f", "strong", []byte("1"))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := changes.Notify(ctx, c, cell("old", strong), cell("weakly", weak)); err != nil {
				t.Fatal(err)
			}
			acknowledge("half", changes.Observation{}, observers[0])
			acknowledge("done", changes.Observation{}, observers...)
			acknowledge("dropped", *observeAlone(t, c, cell("dropped", strong)), observers[0]) // an ack below its own start_ts
			if err := changes.SetFailure(ctx, c, cell("changed", strong), observers[1], format.Failure{ChangeTS: 7, Attempts: 2, Error: "no"}); err != nil {
				t.Fatal(err)
			}
			var rows []string
			for o, err := range changes.Observations(ctx, c, "docs", nil) {
				if err != nil {
					t.Fatal(err)
				}
				rows = append(rows, o.Cell.Row)
				want := observeAlone(t, c, o.Cell)
				if want.Acks == nil {
					want.Acks = map[string]tso.Timestamp{}
				}
				if d := cmp.Diff(*want, o, cmpopts.IgnoreUnexported(changes.Observation{}), cmpopts.IgnoreFields(changes.Observation{}, "StartTS")); d != "" {
					t.Errorf("%s: Observe is -, Observations +\n%s", o.Cell, d)
				}
			}
			if want := "changed done dropped half old weakly"; strings.Join(rows, " ") != want {
				t.Errorf("rows %v, want %s", rows, want)
			}
		})
	}
}

// observeAlone returns what a new transaction observes.
func observeAlone(t *testing.T, c *txn.Client, cell txn.Cell) *changes.Observation {
	t.Helper()
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	o, err := changes.Observe(t.Context(), tx, cell)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func manyObservers(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("observer-with-a-long-name-%s-%02d", strings.Repeat("x", 50), i))
	}
	return ids
}

// An acknowledgment under way hides the committed one from the newest versions,
// and is not waited for.
func TestObservationsOfLocked(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t)
	env.CreateTable("docs", "f")
	c := env.Client
	col := txn.Column{Family: "f", Qualifier: "q"}
	cell := txn.Cell{Table: "docs", Row: "r", Family: "f", Qualifier: "q"}
	if err := changes.RegisterObserver(ctx, c, "docs", col, "a", false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Update(ctx, setCell(cell)); err != nil {
		t.Fatal(err)
	}
	var first *changes.Observation
	if _, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) (err error) {
		if first, err = changes.Observe(ctx, tx, cell); err == nil {
			changes.Acknowledge(tx, first, "a")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// What runs that are under way, or died, have prewritten: more than are read
	// along.
	ack := env.Bigtable.Open("docs")
	for i := range 20 {
		if err := ack.Apply(ctx, "r", ackData(first.StartTS+tso.Timestamp(1+i))); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { // for the consistency check
		if err := ack.Apply(context.WithoutCancel(ctx), "r", dropAckData(first.StartTS+1, first.StartTS+21)); err != nil {
			t.Error(err)
		}
	}()
	n := 0
	for o, err := range changes.Observations(ctx, c, "docs", nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if o.Acks["a"] != first.StartTS || o.Pending("a") || o.Locked {
			t.Errorf("%+v, want the acknowledgment at %d", o, first.StartTS)
		}
	}
	if n != 1 {
		t.Errorf("%d notifications, want 1", n)
	}
}

func setCell(cell txn.Cell) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(cell.Table).Set(cell.Row, cell.Family, cell.Qualifier, []byte("v"))
		return nil
	}
}

// plain writes a cell without a transaction.
func plain(t *testing.T, env *txntest.Env, table, row, family, qualifier string) {
	t.Helper()
	m := bigtable.NewMutation()
	m.Set(family, qualifier, bigtable.Now(), []byte("plain"))
	if err := env.Bigtable.Open(table).Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
}

func ackData(at tso.Timestamp) *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.Set(format.AckFamily, "f:q/a", at.Cell(), []byte("12345678"))
	return m
}

func dropAckData(from, to tso.Timestamp) *bigtable.Mutation {
	m := bigtable.NewMutation()
	m.DeleteTimestampRange(format.AckFamily, "f:q/a", from.Cell(), to.Cell())
	return m
}

// TestObservationOfDamagedRecord: nobody knows which change a damaged record stands for, so the
// cell does not count as one without a change.
func TestObservationOfDamagedRecord(t *testing.T) {
	env := newObservedTable(t, txntest.WithoutCheck())
	if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
		t.Fatal(err)
	}
	now, err := env.Client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bt, _ := env.Open()
	m := bigtable.NewMutation()
	m.Set(format.WriteFamily, "f:q", now.Cell(), []byte("\xff"))
	if err := bt.Open("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
	n := 0
	for o, err := range changes.Observations(t.Context(), env.Client, "t", nil) {
		if n++; !errors.Is(err, txn.ErrCorrupt) {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if n != 1 {
		t.Errorf("%d observations", n)
	}
}

// TestObserveReadsTheValue: a Get of an observed cell sends nothing, because Observe has read its value.
func TestObserveReadsTheValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("a", "f")
		cell := txn.Cell{Table: "a", Row: "x", Family: "f", Qualifier: "q"}
		if err := changes.RegisterObserver(t.Context(), env.Client, "a", cell.Column(), "o", false); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"", "v"} {
			faults := txntest.NewFaults(t)
			c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
			if want != "" {
				if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					tx.Table("a").Set("x", "f", "q", []byte(want))
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			tx, err := c.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := changes.Observe(t.Context(), tx, cell); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			sent := len(faults.Calls())
			v, ok, err := tx.Table("a").Get(t.Context(), "x", "f", "q")
			if err != nil || string(v) != want || ok != (want != "") {
				t.Errorf("%q, %t, %v; want %q", v, ok, err, want)
			}
			synctest.Wait()
			if more := len(faults.Calls()) - sent; sent == 0 || more != 0 {
				t.Errorf("%d requests, and then %d", sent, more)
			}
			tx.Rollback()
		}
	})
}
