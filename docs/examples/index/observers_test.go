package index

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A table is what is expected, with short names in place of hashes.
type table map[string]string // "table/row/family:qualifier": value

// hashes stand for contents in expected tables.
var (
	page = link("b.html", "c.html")
	leaf = "leaf"
	H1   = Digest([]byte(page))
	H2   = Digest([]byte(leaf))
)

// put writes cells by hand.
func put(t *testing.T, client *txn.Client, cells table) {
	t.Helper()
	_, err := client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for name, value := range cells {
			c, err := format.ParseCell(name)
			if err != nil {
				return err
			}
			if value == absent {
				tx.Table(c.Table).Delete(c.Row, c.Family, c.Qualifier)
			} else {
				tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte(value))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

const absent = "\x00"

// step clears all notifications, runs one observer on one row, and returns what
// it has notified, in order.
func step(t *testing.T, client *txn.Client, id, row string) (notified []string) {
	t.Helper()
	each := func(f func(changes.Notification)) {
		t.Helper()
		for _, spec := range Tables {
			for n, err := range changes.Notifications(t.Context(), client, spec.Name, nil) {
				if err != nil {
					t.Fatal(err)
				}
				f(n)
			}
		}
	}
	now, err := client.Timestamp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	each(func(n changes.Notification) {
		if err := changes.ClearNotifications(t.Context(), client, changes.Cleared{Cell: n.Cell, UpTo: now}); err != nil {
			t.Fatal(err)
		}
	})
	i := slices.IndexFunc(Observers(), func(o Observer) bool { return o.ID == id })
	o := Observers()[i]
	cell := txn.Cell{Table: o.Table, Row: row, Family: o.Column.Family, Qualifier: o.Column.Qualifier}
	if _, err := client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return o.Observe(ctx, tx, cell) }); err != nil {
		t.Fatalf("%s of %s: %v", id, row, err)
	}
	each(func(n changes.Notification) { notified = append(notified, n.Cell.String()) })
	return notified
}

// holds compares the tables with what they should hold.
func holds(t *testing.T, client *txn.Client, want table) {
	t.Helper()
	snapshot, err := client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(t.Context(), snapshot)
	if err != nil {
		t.Fatal(err)
	}
	state := State{}
	for name, value := range want {
		c, err := format.ParseCell(name)
		if err != nil {
			t.Fatal(err)
		}
		state[c] = value
	}
	for _, m := range Compare(got, state) {
		t.Error(m)
	}
}

func sorted(names ...string) []string { slices.Sort(names); return names }

// stepTest runs an observer on a row of tables written by hand.
type stepTest struct {
	name, row string
	have      table
	writes    table // absent: deletes
	notifies  []string
}

func (test stepTest) run(t *testing.T, id string) {
	t.Run(id+" "+test.name, func(t *testing.T) {
		t.Parallel()
		env := newEnv(t)
		put(t, env.Client, test.have)
		if got := step(t, env.Client, id, test.row); !slices.Equal(got, sorted(test.notifies...)) {
			t.Errorf("notified %q, want %q", got, test.notifies)
		}
		want := maps.Clone(test.have)
		maps.Copy(want, test.writes)
		maps.DeleteFunc(want, func(_, v string) bool { return v == absent })
		for name := range want {
			if strings.HasSuffix(name, "/contents:raw") {
				want[name] = Digest([]byte(want[name])) // as Read shows it
			}
		}
		holds(t, env.Client, want)
		// To run again is harmless: nothing more is written.
		step(t, env.Client, id, test.row)
		holds(t, env.Client, want)
	})
}

func TestParser(t *testing.T) {
	t.Parallel()
	for _, test := range []stepTest{
		{"new", "a.html", table{"documents/a.html/contents:raw": page},
			table{"documents/a.html/parsed:hash": H1, "documents/a.html/parsed:links": "b.html\nc.html\n"},
			[]string{"documents/a.html/parsed:hash"}},
		{"loaded again", "a.html", table{"documents/a.html/contents:raw": page, "documents/a.html/parsed:hash": H1, "documents/a.html/parsed:links": "b.html\nc.html\n"},
			nil, nil},
		{"changed", "a.html", table{"documents/a.html/contents:raw": leaf, "documents/a.html/parsed:hash": H1, "documents/a.html/parsed:links": "b.html\nc.html\n"},
			table{"documents/a.html/parsed:hash": H2, "documents/a.html/parsed:links": ""},
			[]string{"documents/a.html/parsed:hash"}},
		{"deleted", "a.html", table{"documents/a.html/parsed:hash": H1, "documents/a.html/parsed:links": "b.html\nc.html\n"},
			table{"documents/a.html/parsed:hash": absent, "documents/a.html/parsed:links": absent},
			[]string{"documents/a.html/parsed:hash"}},
	} {
		test.run(t, "parser")
	}
}

func TestClusterer(t *testing.T) {
	t.Parallel()
	for _, test := range []stepTest{
		{"new", "a", table{"documents/a/parsed:hash": H1},
			table{"documents/a/cluster:hash": H1, "dups/" + H1 + "/member:a": ""},
			[]string{"dups/" + H1 + "/cluster:elect"}},
		{"moved", "a", table{"documents/a/parsed:hash": H2, "documents/a/cluster:hash": H1, "documents/a/cluster:canonical": "a", "dups/" + H1 + "/member:a": "", "dups/" + H1 + "/member:b": ""},
			table{"documents/a/cluster:hash": H2, "dups/" + H1 + "/member:a": absent, "dups/" + H2 + "/member:a": ""},
			[]string{"documents/a/cluster:canonical", "dups/" + H1 + "/cluster:elect", "dups/" + H2 + "/cluster:elect"}},
		{"there and back", "a", table{"documents/a/parsed:hash": H1, "documents/a/cluster:hash": H1, "documents/a/cluster:canonical": "a", "dups/" + H1 + "/member:a": ""},
			nil, []string{"documents/a/cluster:canonical"}},
		{"deleted", "a", table{"documents/a/cluster:hash": H1, "documents/a/cluster:canonical": "a", "dups/" + H1 + "/member:a": ""},
			table{"documents/a/cluster:hash": absent, "documents/a/cluster:canonical": absent, "dups/" + H1 + "/member:a": absent},
			[]string{"documents/a/cluster:canonical", "dups/" + H1 + "/cluster:elect"}},
	} {
		test.run(t, "clusterer")
	}
}

func TestElector(t *testing.T) {
	t.Parallel()
	exports := []string{"dups/" + H1 + "/cluster:export"}
	two := table{"dups/" + H1 + "/member:a": "", "dups/" + H1 + "/member:b": ""}
	with := func(cells ...table) table {
		sum := maps.Clone(two)
		for _, c := range cells {
			maps.Copy(sum, c)
		}
		return sum
	}
	for _, test := range []stepTest{
		{"by name", H1, two,
			table{"dups/" + H1 + "/cluster:canonical": "a", "documents/a/cluster:canonical": "a", "documents/b/cluster:canonical": "a"},
			append([]string{"documents/a/cluster:canonical", "documents/b/cluster:canonical"}, exports...)},
		{"by in-links", H1, with(table{"inlinks/b/source:x": "x", "inlinks/c/source:y": "y", "inlinks/c/source:z": "z"}),
			table{"dups/" + H1 + "/cluster:canonical": "b", "documents/a/cluster:canonical": "b", "documents/b/cluster:canonical": "b"},
			append([]string{"documents/a/cluster:canonical", "documents/b/cluster:canonical"}, exports...)},
		{"link removed", H1, with(table{"dups/" + H1 + "/cluster:canonical": "b", "documents/a/cluster:canonical": "b", "documents/b/cluster:canonical": "b"}),
			table{"dups/" + H1 + "/cluster:canonical": "a", "documents/a/cluster:canonical": "a", "documents/b/cluster:canonical": "a"},
			append([]string{"documents/a/cluster:canonical", "documents/b/cluster:canonical"}, exports...)},
		{"canonical left", H1, table{"dups/" + H1 + "/member:b": "", "dups/" + H1 + "/cluster:canonical": "a", "documents/b/cluster:canonical": "a"},
			table{"dups/" + H1 + "/cluster:canonical": "b", "documents/b/cluster:canonical": "b"},
			append([]string{"documents/b/cluster:canonical"}, exports...)},
		{"empty", H1, table{"dups/" + H1 + "/cluster:canonical": "a"},
			table{"dups/" + H1 + "/cluster:canonical": absent}, exports},
		{"unchanged", H1, with(table{"dups/" + H1 + "/cluster:canonical": "a", "documents/a/cluster:canonical": "a", "documents/b/cluster:canonical": "a"}),
			nil, exports},
	} {
		test.run(t, "elector")
	}
}

func TestInverter(t *testing.T) {
	t.Parallel()
	parsed := table{"documents/a/parsed:links": "b\nc\n", "documents/a/cluster:canonical": "a"}
	inverted := table{"documents/a/inverted:to": "b\nc\n", "documents/a/inverted:as": "a", "inlinks/b/source:a": "a", "inlinks/c/source:a": "a"}
	both := maps.Clone(parsed)
	maps.Copy(both, inverted)
	with := func(changes table) table {
		sum := maps.Clone(both)
		maps.Copy(sum, changes)
		return sum
	}
	removed := table{"documents/a/inverted:to": absent, "documents/a/inverted:as": absent, "inlinks/b/source:a": absent, "inlinks/c/source:a": absent}
	pages := []string{"inlinks/b/page:forward", "inlinks/c/page:forward"}
	for _, test := range []stepTest{
		{"new", "a", parsed, inverted, pages},
		{"unchanged", "a", both, nil, nil},
		{"links changed", "a", with(table{"documents/a/parsed:links": "c\nd\n"}),
			table{"documents/a/inverted:to": "c\nd\n", "inlinks/b/source:a": absent, "inlinks/d/source:a": "a"},
			[]string{"inlinks/b/page:forward", "inlinks/d/page:forward"}},
		{"another canonical", "a", with(table{"documents/a/cluster:canonical": "z"}),
			table{"documents/a/inverted:as": "z", "inlinks/b/source:a": "z", "inlinks/c/source:a": "z"}, pages},
		{"no links any more", "a", with(table{"documents/a/parsed:links": ""}), removed, pages},
		{"deleted", "a", inverted, removed, pages},
	} {
		test.run(t, "inverter")
	}
}

func TestForwarder(t *testing.T) {
	t.Parallel()
	for _, test := range []stepTest{
		{"no such document", "b", table{"inlinks/b/source:a": "a"}, nil, nil},
		{"alone", "b", table{"documents/b/cluster:hash": H2, "dups/" + H2 + "/member:b": ""}, nil,
			[]string{"dups/" + H2 + "/cluster:export"}},
		{"duplicates", "b", table{"documents/b/cluster:hash": H2, "dups/" + H2 + "/member:b": "", "dups/" + H2 + "/member:c": ""}, nil,
			[]string{"dups/" + H2 + "/cluster:elect"}},
	} {
		test.run(t, "forwarder")
	}
}

func TestExporter(t *testing.T) {
	t.Parallel()
	// a and b are equal. x and its duplicate y link to a, w to b, and b to a.
	cluster := table{
		"dups/" + H1 + "/member:a": "", "dups/" + H1 + "/member:b": "", "dups/" + H1 + "/cluster:canonical": "a",
		"inlinks/a/source:x": "x", "inlinks/a/source:y": "x", "inlinks/a/source:b": "a", "inlinks/b/source:w": "w",
	}
	served := table{"dups/" + H1 + "/cluster:served": "a", "serving/a/doc:hash": H1, "serving/a/doc:duplicates": "b\n", "serving/a/doc:inlinks": "w\nx\n"}
	both := maps.Clone(cluster)
	maps.Copy(both, served)
	with := func(changes table) table {
		sum := maps.Clone(both)
		maps.Copy(sum, changes)
		maps.DeleteFunc(sum, func(_, v string) bool { return v == absent })
		return sum
	}
	for _, test := range []stepTest{
		{"new", H1, cluster, served, nil},
		{"unchanged", H1, both, nil, nil},
		{"another canonical", H1, with(table{"dups/" + H1 + "/cluster:canonical": "b"}),
			table{
				"dups/" + H1 + "/cluster:served": "b", "serving/a/doc:hash": absent, "serving/a/doc:duplicates": absent, "serving/a/doc:inlinks": absent,
				"serving/b/doc:hash": H1, "serving/b/doc:duplicates": "a\n", "serving/b/doc:inlinks": "a\nw\nx\n",
			}, nil},
		{"canonical has left, none is elected yet", H1, with(table{"dups/" + H1 + "/member:a": absent}), nil, nil},
		{"canonical has moved and is served elsewhere", H1,
			with(table{"dups/" + H1 + "/member:a": absent, "dups/" + H1 + "/cluster:canonical": "b", "serving/a/doc:hash": H2}),
			table{"dups/" + H1 + "/cluster:served": "b", "serving/b/doc:hash": H1, "serving/b/doc:duplicates": "", "serving/b/doc:inlinks": "w\n"}, nil},
		{"empty", H1, with(table{"dups/" + H1 + "/member:a": absent, "dups/" + H1 + "/member:b": absent, "dups/" + H1 + "/cluster:canonical": absent}),
			table{"dups/" + H1 + "/cluster:served": absent, "serving/a/doc:hash": absent, "serving/a/doc:duplicates": absent, "serving/a/doc:inlinks": absent}, nil},
	} {
		test.run(t, "exporter")
	}
}
