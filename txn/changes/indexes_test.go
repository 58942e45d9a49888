package changes_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// TestRegisteredIndexes: an index is known by its name and by the place of its entries. To register
// it again replaces it, and no other; so does its removal.
func TestRegisteredIndexes(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("docs", "d")
	env.CreateTable("places", "f", "g")
	index := func(name, entries string, qualifiers ...string) changes.Index {
		i := changes.Index{Name: name, Entries: entries}
		for _, q := range qualifiers {
			i.Columns = append(i.Columns, txn.Column{Family: "d", Qualifier: q})
		}
		return i
	}
	want := func(indexes ...changes.Index) {
		t.Helper()
		got, err := changes.Indexes(t.Context(), env.Client, "docs")
		if d := cmp.Diff(indexes, got); d != "" || err != nil {
			t.Errorf("%v, indexes (-want +got):\n%s", err, d)
		}
	}
	do := func(f func(context.Context, *txn.Client, string, changes.Index) error, i changes.Index) {
		t.Helper()
		if err := f(t.Context(), env.Client, "docs", i); err != nil {
			t.Error(err)
		}
	}
	want()
	a, b, c := index("mail", "places/f", "mail"), index("name", "places/f", "name", "first"), index("mail", "places/g", "mail")
	for _, i := range []changes.Index{a, b, c, a} {
		do(changes.RegisterIndex, i)
	}
	want(a, b, c)
	a = index("mail", "places/f", "address")
	do(changes.RegisterIndex, a)
	want(a, b, c)
	do(changes.UnregisterIndex, index("mail", "places/f"))
	want(b, c)
	do(changes.UnregisterIndex, index("other", "places/f"))
	want(b, c)

	wantError(t, changes.RegisterIndex(t.Context(), env.Client, "docs", changes.Index{Name: "x", Entries: "places/f", Columns: []txn.Column{{Family: "none"}}}), txn.ErrSchema, `has no family "none"`)
	_, err := changes.Indexes(t.Context(), env.Client, "nowhere")
	for _, err := range []error{
		err,
		changes.RegisterIndex(t.Context(), env.Client, "nowhere", b),
		changes.RegisterIndex(t.Context(), env.Client, "docs", index("x", "nowhere/f", "name")),
		changes.UnregisterIndex(t.Context(), env.Client, "nowhere", b),
	} {
		wantError(t, err, txn.ErrNotInitialized, "nowhere")
	}
	want(b, c)
}

// TestIndexesOfExpiringValues: an index is refused if its values or its entries expire.
func TestIndexesOfExpiringValues(t *testing.T) {
	env := txntest.New(t)
	env.CreateTable("docs", "d", "brief")
	env.CreateTable("places", "f", "brief")
	for _, table := range []string{"docs", "places"} {
		if err := admin.SetExpiry(t.Context(), env.Client, table, "brief", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		family, entries string
		ok              bool
	}{{"d", "places/f", true}, {"brief", "places/f", false}, {"d", "places/brief", false}} {
		i := changes.Index{Name: "x", Entries: tt.entries, Columns: []txn.Column{{Family: tt.family, Qualifier: "q"}}}
		err := changes.RegisterIndex(t.Context(), env.Client, "docs", i)
		if tt.ok && err != nil || !tt.ok && (!errors.Is(err, txn.ErrSchema) || !strings.Contains(err.Error(), "cannot follow")) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
