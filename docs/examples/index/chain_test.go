package index

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// seq is a set of documents as loaders and Compute take them.
func seq(docs map[string]string) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		for name, contents := range docs {
			if !yield(Document{Name: name, Contents: []byte(contents)}, nil) {
				return
			}
		}
	}
}

// config has secondaries be there when a commit returns, and short waits: there is
// much to wait for here.
var config = txn.Config{SyncSecondaries: true, Backoff: txn.Backoff{Max: 50 * time.Millisecond}}

func newEnv(t *testing.T) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.WithConfig(config))
	for _, spec := range Tables {
		env.InitTable(spec)
	}
	if err := Register(t.Context(), env.Client); err != nil {
		t.Fatal(err)
	}
	return env
}

// runWorkers runs the observers in some workers, each with a client of its own,
// until the test ends.
func runWorkers(t *testing.T, env *txntest.Env, n int, onEvent func(notify.Event)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, n)
	for range n {
		w, err := notify.NewWorker(env.NewClient(config), notify.Config{
			Finder:  &notify.Scanner{MinInterval: 100 * time.Millisecond, MaxInterval: 200 * time.Millisecond},
			Backoff: txn.Backoff{Min: 5 * time.Millisecond, Max: time.Second}, // of conflicts, too
			OnEvent: onEvent,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := Handle(w); err != nil {
			t.Fatal(err)
		}
		go func() { done <- w.Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range n {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}

// settle waits until nothing is left to run and returns the tables.
func settle(t *testing.T, client *txn.Client) State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	asOf, err := notify.Wait(ctx, client, notify.WaitConfig{Backoff: txn.Backoff{Max: 50 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := client.Snapshot(ctx, txn.At(asOf))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(ctx, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func load(t *testing.T, client *txn.Client, docs iter.Seq2[Document, error]) {
	t.Helper()
	if _, err := notify.Load(t.Context(), client, docs, Load, notify.LoadConfig{Concurrency: 8}); err != nil {
		t.Fatal(err)
	}
}

// link is a .html document with links to others.
func link(to ...string) (contents string) {
	for _, l := range to {
		contents += fmt.Sprintf("<a href=%q>", l)
	}
	return contents
}

// TestChain has changes percolate through all observers, and looks at the table
// that is served.
func TestChain(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	runWorkers(t, env, 2, nil)
	docs := maps.Clone(small)
	for _, step := range []struct {
		what    string
		changes []Document
		serving map[string]string // in-links; duplicates behind a bar
	}{
		{"loaded", nil, map[string]string{"b.html": "d.html,x.html|a.html", "x.html": "|y.html", "d.html": "|"}},
		{"a link to the canonical document is removed, and there are as many to its duplicate",
			[]Document{{Name: "y.html", Contents: []byte("no link")}},
			map[string]string{"a.html": "d.html,x.html|b.html", "x.html": "|", "y.html": "|", "d.html": "|"}},
		{"the canonical document is deleted", []Document{{Name: "a.html", Deleted: true}},
			map[string]string{"b.html": "x.html|", "x.html": "|", "y.html": "|", "d.html": "|"}},
		{"it comes back", []Document{{Name: "a.html", Contents: []byte(small["a.html"])}},
			map[string]string{"a.html": "d.html,x.html|b.html", "x.html": "|", "y.html": "|", "d.html": "|"}},
		{"a linking document becomes a duplicate: links come from its canonical document",
			[]Document{{Name: "c.html", Contents: []byte(small["d.html"])}},
			map[string]string{"a.html": "c.html,x.html|b.html", "x.html": "|", "y.html": "|", "c.html": "|d.html"}},
		{"everything is deleted", []Document{{Name: "a.html", Deleted: true}, {Name: "b.html", Deleted: true}, {Name: "c.html", Deleted: true}, {Name: "d.html", Deleted: true}, {Name: "x.html", Deleted: true}, {Name: "y.html", Deleted: true}},
			map[string]string{}},
	} {
		changes := step.changes
		if changes == nil {
			for d := range seq(small) {
				changes = append(changes, d)
			}
		}
		for _, d := range changes {
			if delete(docs, d.Name); !d.Deleted {
				docs[d.Name] = string(d.Contents)
			}
		}
		load(t, env.Client, documents(changes))
		got := settle(t, env.Client)
		served := map[string]string{}
		for cell, value := range got {
			column := txn.Column{Family: cell.Family, Qualifier: cell.Qualifier}
			list := strings.Join(decodeNames(value), ",")
			switch {
			case cell.Table != Serving:
			case column == docInlinks:
				served[cell.Row] = list + served[cell.Row]
			case column == docDuplicates:
				served[cell.Row] += "|" + list
			}
		}
		if !maps.Equal(served, step.serving) {
			t.Errorf("%s: served is %q, want %q", step.what, served, step.serving)
		}
		want, err := Compute(seq(docs))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range Compare(got, want.State) {
			t.Errorf("%s: %s", step.what, m)
		}
	}
}

func documents(all []Document) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		for _, d := range all {
			if !yield(d, nil) {
				return
			}
		}
	}
}

// TestRandomChanges changes a handful of documents at random while several
// workers run the observers, so that they get in each other's way as much as
// they can. Whatever the order, the tables end as the batch computation has
// them.
func TestRandomChanges(t *testing.T) {
	t.Parallel()
	env := newEnv(t)
	runWorkers(t, env, 3, nil)
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a.html", "b.html", "c.html", "d.html", "e.html", "f.html"}
	// Few contents, so that documents change clusters all the time, also back to
	// where they were.
	contents := []string{"", link("a.html"), link("b.html", "c.html"), link("a.html", "d.html"), link("e.html")}
	docs := map[string]string{}
	for round := range 6 {
		for range 6 { // no wait in between
			changes := map[string]Document{}
			for range 3 {
				name := names[random.IntN(len(names))]
				d := Document{Name: name, Contents: []byte(contents[random.IntN(len(contents))]), Deleted: random.IntN(4) == 0}
				changes[name] = d
				if delete(docs, name); !d.Deleted {
					docs[name] = string(d.Contents)
				}
			}
			load(t, env.Client, documents(slices.Collect(maps.Values(changes))))
		}
		want, err := Compute(seq(docs))
		if err != nil {
			t.Fatal(err)
		}
		if m := Compare(settle(t, env.Client), want.State); len(m) > 0 {
			t.Fatalf("round %d: %q", round, m)
		}
	}
}
