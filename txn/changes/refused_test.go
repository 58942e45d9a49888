package changes_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestInvalidNames: what names an invalid cell or observer is refused, without a request.
func TestInvalidNames(t *testing.T) {
	env := newObservedTable(t)
	faults := txntest.NewFaults(t)
	c := env.NewClient(txn.Config{TokenTTL: -1}, faults.DialOptions()...)
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	before := len(faults.Calls())
	for _, bad := range []changes.DeadLetter{{Cell: txn.Cell{Table: "t", Family: "f", Qualifier: "q"}, Observer: "o", ParkedTS: 1}, {Cell: observedCell, Observer: "a/b", ParkedTS: 1}} {
		calls := map[string]error{
			"Park":       changes.Park(t.Context(), c, bad),
			"Drop":       changes.Drop(t.Context(), c, bad),
			"Replay":     changes.Replay(t.Context(), c, bad),
			"SetFailure": changes.SetFailure(t.Context(), c, bad.Cell, bad.Observer, format.Failure{}),
		}
		if bad.Observer == "o" {
			calls["ClearNotifications"] = changes.ClearNotifications(t.Context(), c, changes.Cleared{Cell: bad.Cell, UpTo: 1})
			_, calls["Observe"] = changes.Observe(t.Context(), tx, bad.Cell)
		}
		calls["a weak pattern"] = changes.RegisterObserver(t.Context(), c, "t", txn.Pattern("f", "q"), "p", true)
		_, _, calls["Previous of a weak notification"] = changes.Previous(t.Context(), tx, &changes.Observation{Cell: observedCell, Weak: true}, "o")
		for name, err := range calls {
			if !errors.Is(err, txn.ErrInvalid) {
				t.Errorf("%s of %+v: %v", name, bad, err)
			}
		}
	}
	if v, ok, err := changes.Previous(t.Context(), tx, &changes.Observation{Cell: observedCell}, "o"); v != nil || ok || err != nil {
		t.Errorf("before the first run: %q, %t, %v", v, ok, err)
	}
	if calls := faults.Calls(); len(calls) != before {
		t.Errorf("sent %v", calls[before:])
	}
}

// TestHopsOfNotifications: a notification without a run has no hops, and those of a run have one more than what it ran for.
// A dead letter replaces the last one.
func TestHopsOfNotifications(t *testing.T) {
	env := newObservedTable(t)
	hops := func(row string, want int) {
		t.Helper()
		for n, err := range changes.Notifications(t.Context(), env.Client, "t", bigtable.SingleRow(row)) {
			if last := n.Triggers[len(n.Triggers)-1]; err != nil || last.Hops != want {
				t.Errorf("%+v, %v; want %d hops", n, err, want)
			}
		}
	}
	if _, err := env.Client.Update(t.Context(), set("t", "r")); err != nil {
		t.Fatal(err)
	}
	if err := changes.Notify(t.Context(), env.Client, observedCell); err != nil {
		t.Fatal(err)
	}
	hops("r", 0)
	cell := observedCell
	for i := range 3 {
		next := fmt.Sprint("r", i)
		if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			if _, err := changes.Observe(ctx, tx, cell); err != nil {
				return err
			}
			return set("t", next)(ctx, tx)
		}); err != nil {
			t.Fatal(err)
		}
		hops(next, i+1)
		cell.Row = next
	}
	for range 2 {
		if err := changes.Park(t.Context(), env.Client, changes.DeadLetter{Cell: cell, Observer: "o", Error: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	stored := 0
	if err := env.Bigtable.Open(format.DefaultMetadataTable).ReadRows(t.Context(), bigtable.PrefixRange("dead/"), func(r bigtable.Row) bool {
		for _, items := range r {
			stored += len(items)
		}
		return true
	}); err != nil || stored != 1 {
		t.Errorf("%d dead letters, %v", stored, err)
	}
}
