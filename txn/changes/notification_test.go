package changes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var observedCell = txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "q"}

// newObservedTable makes table t with observer o on f:q.
func newObservedTable(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	env := txntest.New(t, opts...)
	env.CreateTable("t", "f")
	if err := changes.RegisterObserver(t.Context(), env.Client, "t", observedCell.Column(), "o", false); err != nil {
		t.Fatal(err)
	}
	return env
}

func set(table, row string) func(context.Context, *txn.Txn) error {
	return func(_ context.Context, tx *txn.Txn) error {
		tx.Table(table).Set(row, "f", "q", []byte("v"))
		return nil
	}
}

// wantError checks an error's kind, and that its text names what was wrong and how
// to repair it.
func wantError(t *testing.T, err, is error, says ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error is %v; want %v", err, is)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
}

func observe(t *testing.T, tx *txn.Txn) *changes.Observation {
	t.Helper()
	o, err := changes.Observe(t.Context(), tx, observedCell)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestObserve follows a cell from its change to the acknowledgment, and to the
// next change.
func TestObserve(t *testing.T) {
	ctx := t.Context()
	env := newObservedTable(t)
	c := env.Client
	begin := func() *txn.Txn {
		tx, err := c.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(tx.Rollback)
		return tx
	}
	if o := observe(t, begin()); o.ChangeTS != 0 || o.Pending("o") || !o.Acknowledged() || len(o.Triggers) != 0 {
		t.Errorf("before any change: %+v", o)
	}
	changed, err := c.Update(ctx, set("t", "r"))
	if err != nil {
		t.Fatal(err)
	}
	a, b := begin(), begin()
	for _, tx := range []*txn.Txn{a, b} {
		o := observe(t, tx)
		if o.ChangeTS != changed || !o.Pending("o") || o.Acknowledged() || len(o.Triggers) != 1 || o.Triggers[0].TS != changed {
			t.Errorf("after a change: %+v", o)
		}
		changes.Acknowledge(tx, o, "o")
	}
	if _, err := a.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	// The other one has seen the same change: only one of them commits.
	_, err = b.Commit(ctx)
	var conflict *txn.ConflictError
	if !errors.As(err, &conflict) || !txn.Retryable(err) {
		t.Fatalf("the second acknowledgment: %v", err)
	}
	if col, observer, ok := format.ObserverOf(conflict.Cell.Column()); !ok || col != observedCell.Column() || observer != "o" {
		t.Errorf("the conflict is on %v", conflict.Cell)
	}
	o := observe(t, begin())
	if o.Pending("o") || o.Acks["o"] != a.StartTS() {
		t.Errorf("after the acknowledgment: %+v", o)
	}
	if err := changes.ClearNotifications(ctx, c, changes.Cleared{Cell: observedCell, UpTo: o.StartTS}); err != nil {
		t.Fatal(err)
	}
	later, err := c.Update(ctx, set("t", "r"))
	if err != nil {
		t.Fatal(err)
	}
	// What was cleared up to a start_ts is nothing above it, and a notification that stays keeps its journal
	// entry, which the consistency check looks for.
	if err := changes.ClearNotifications(ctx, c, changes.Cleared{Cell: observedCell, UpTo: o.StartTS}, changes.Cleared{Cell: observedCell, ChangeTS: later}); err != nil {
		t.Fatal(err)
	}
	if o := observe(t, begin()); !o.Pending("o") || len(o.Triggers) != 1 || o.Triggers[0].TS != later {
		t.Errorf("after the next change: %+v", o)
	}
}

// TestDamagedAcknowledgments: what no observer's run wrote does not count as an
// acknowledgment. Before the fix, a value of 8 bytes let the observer skip a change, and
// one of another size kept it from running.
func TestDamagedAcknowledgments(t *testing.T) {
	ack := format.AckColumn(observedCell.Column(), "o")
	for name, value := range map[string][]byte{
		"short": []byte("garbage"), "above its transaction": []byte("garbage!"), "negative": []byte("\xffgarbage"),
	} {
		for _, record := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a write record: %v", name, record), func(t *testing.T) {
				ctx := t.Context()
				env := newObservedTable(t, txntest.WithoutCheck())
				c := env.Client
				if _, err := c.Update(ctx, set("t", "r")); err != nil {
					t.Fatal(err)
				}
				ts, err := c.Timestamp(ctx)
				if err != nil {
					t.Fatal(err)
				}
				m, at := bigtable.NewMutation(), bigtable.Now()
				if record {
					cell := format.Cell{Table: "t", Row: "r", Family: ack.Family, Qualifier: ack.Qualifier}
					at = ts.Cell()
					family, record := format.EncodeCommit(cell, cell, format.KindPut, ts)
					m.Set(family, ack.Key(), (ts + 1).Cell(), record)
				}
				m.Set(ack.Family, ack.Qualifier, at, value)
				if err := env.Bigtable.Open("t").Apply(ctx, "r", m); err != nil {
					t.Fatal(err)
				}
				pending := func(want bool) {
					t.Helper()
					for o, err := range changes.Observations(ctx, c, "t", nil) {
						if err != nil || o.Pending("o") != want {
							t.Errorf("Observations: %+v, %v; want pending: %v", o, err, want)
						}
					}
					if _, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
						if o := observe(t, tx); o.Pending("o") != want {
							t.Errorf("Observe: %+v; want pending: %v", o, want)
						} else if want {
							changes.Acknowledge(tx, o, "o")
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				pending(true)
				pending(false) // the run has replaced the damaged one
			})
		}
	}
}

// TestBrokenNotifications: what does not parse in one cell hides no other, and
// the consistency check reports it.
func TestBrokenNotifications(t *testing.T) {
	env := newObservedTable(t, txntest.WithoutCheck())
	for _, row := range []string{"a", "r", "z"} {
		if _, err := env.Client.Update(t.Context(), set("t", row)); err != nil {
			t.Fatal(err)
		}
	}
	m := bigtable.NewMutation()
	for _, q := range []string{"nonsense", ":", ":o", ":o:nonsense", ":o:f:q"} {
		m.Set(format.NotifyFamily, q, 0, []byte("\xff nonsense"))
	}
	if err := env.Bigtable.Open("t").Apply(t.Context(), "r", m); err != nil {
		t.Fatal(err)
	}
	var found []string
	for n, err := range changes.Notifications(t.Context(), env.Client, "t", nil) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprintf("%s %d %d", n.Cell, len(n.Triggers), len(n.Failures)))
	}
	if got, want := strings.Join(found, ", "), "t/a/f:q 1 0, t/r/f:q 1 0, t/z/f:q 1 0"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	n := 0
	for v, err := range admin.Check(t.Context(), env.Client, "t", nil) {
		if err != nil || v.Rule != admin.RuleFormat {
			t.Errorf("%v, %v", v, err)
		}
		n++
	}
	if n < 5 {
		t.Errorf("%d violations of 5", n)
	}
	// The observer of that cell does not run before it is repaired.
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := changes.Observe(t.Context(), tx, observedCell); !errors.Is(err, txn.ErrCorrupt) {
		t.Error(err)
	}
}

// TestDeadLetterIdentity: to drop a letter does not drop one that took its place.
func TestDeadLetterIdentity(t *testing.T) {
	ctx := t.Context()
	env := newObservedTable(t)
	letters := func() (all []changes.DeadLetter) {
		for d, err := range changes.DeadLetters(ctx, env.Client) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d)
		}
		return all
	}
	park := func(text string) changes.DeadLetter {
		if err := changes.Park(ctx, env.Client, changes.DeadLetter{Cell: observedCell, Observer: "o", Error: text}); err != nil {
			t.Fatal(err)
		}
		all := letters()
		if len(all) != 1 || all[0].Error != text || all[0].ParkedTS == 0 {
			t.Fatalf("letters %+v", all)
		}
		return all[0]
	}
	first := park("first")
	second := park("second")
	if err := changes.Drop(ctx, env.Client, first); err != nil {
		t.Fatal(err)
	}
	if all := letters(); len(all) != 1 || all[0].Error != "second" {
		t.Errorf("letters after the first was dropped: %+v", all)
	}
	if err := changes.Drop(ctx, env.Client, second); err != nil {
		t.Fatal(err)
	}
	if all := letters(); len(all) != 0 {
		t.Errorf("letters %+v", all)
	}
}

// TestRegistrations: clients that register at once all get in, and what
// contradicts is refused with what it contradicts.
func TestRegistrations(t *testing.T) {
	ctx := t.Context()
	env := txntest.New(t)
	env.CreateTable("t", "f")
	const n = 12
	var all sync.WaitGroup
	for i := range n {
		c := env.NewClient(txn.Config{TokenTTL: -1})
		all.Go(func() {
			for range 2 { // again is harmless
				if err := changes.RegisterObserver(ctx, c, "t", txn.Column{Family: "f", Qualifier: fmt.Sprintf("q%d", i%4)}, fmt.Sprintf("o%d", i), false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var cols []changes.ObservedColumn
	for range 5 {
		var err error
		cols, err = changes.ObservedColumns(ctx, env.Client, "t")
		if err != nil || len(cols) != 4 || !slices.IsSortedFunc(cols, func(a, b changes.ObservedColumn) int { return strings.Compare(a.Column.Qualifier, b.Column.Qualifier) }) {
			t.Fatalf("%+v, %v", cols, err)
		}
	}
	for _, col := range cols {
		if len(col.Observers) != n/4 {
			t.Errorf("%+v", col)
		}
	}
	reg := func(family, qualifier, id string, weak bool) error {
		return changes.RegisterObserver(ctx, env.Client, "t", txn.Column{Family: family, Qualifier: qualifier}, id, weak)
	}
	wantError(t, reg("f", "q1", "o0", false), changes.ErrRegistration, "o0", "f:q0", "UnregisterObserver")
	wantError(t, reg("f", "q0", "new", true), changes.ErrRegistration, "strong notifications")
	wantError(t, reg("g", "q0", "new", false), txn.ErrSchema, `"g"`)
	for _, id := range []string{"", "a/b", "a:b", "a b", "50%", "\xff", strings.Repeat("x", 101)} {
		wantError(t, reg("f", "q0", id, false), txn.ErrInvalid)
	}
	_, err := changes.ObservedColumns(ctx, env.Client, "missing")
	wantError(t, err, txn.ErrNotInitialized, "missing")
	wantError(t, changes.Notify(ctx, env.Client, txn.Cell{Table: "t", Row: "r", Family: "f", Qualifier: "unobserved"}), txn.ErrSchema, "no observer")
	_, err = env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		tx.Table("t").Set("r", "f", "other", nil)
		tx.Table("t").Notify("r", "f", "q0")
		return nil
	})
	wantError(t, err, txn.ErrSchema, "takes no weak notifications")
}
