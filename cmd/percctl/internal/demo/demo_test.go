package demo

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	var code *cli.Error
	for _, sum := range []summary{{Mismatches: 1}, {Violations: 1}, {NotificationsLeft: 1}} {
		if err := verdict(&sum); !errors.As(err, &code) || code.Code != cli.ExitFound {
			t.Errorf("verdict on %+v: %v", sum, err)
		}
	}
	if err := verdict(&summary{}); err != nil {
		t.Errorf("verdict on nothing: %v", err)
	}
}

func writeFile(t *testing.T, dir, name, contents string) {
	t.Helper()
	name = filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(contents), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestListDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long := strings.Repeat(strings.Repeat("l", 200)+"/", 15) + "file"
	writeFile(t, dir, "b/file", "1")
	writeFile(t, dir, "a \xff", "22")
	writeFile(t, dir, "huge", "")
	writeFile(t, dir, long, "")
	if err := os.Truncate(filepath.Join(dir, "huge"), maxSize+1); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	docs, skipped, err := listDocuments(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := []document{{"a \xff", index.Digest([]byte("22")), 2}, {"b/file", index.Digest([]byte("1")), 1}}; !reflect.DeepEqual(docs, want) {
		t.Errorf("documents %v, want %v", docs, want)
	}
	if want := []string{"huge", long}; !reflect.DeepEqual(skipped, want) {
		t.Errorf("skipped %q", skipped)
	}
	if docs, _, err := listDocuments(t.Context(), dir, 1); err != nil || len(docs) != 1 {
		t.Errorf("limit 1: %v, %v", docs, err)
	}

	// A file that vanishes, or changes, is named.
	c := newCorpus(dir, append(docs, document{path: "gone"}))
	if _, err := c.read("gone"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("vanished file: %v", err)
	}
	writeFile(t, dir, "b/file", "2")
	if _, err := c.read("b/file"); err == nil || !strings.Contains(err.Error(), "b/file changed") {
		t.Errorf("changed file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := listDocuments(ctx, dir, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestChoose: what an index is about comes first.
func TestChoose(t *testing.T) {
	t.Parallel()
	docs := []document{{path: "a", hash: "1"}, {path: "b", hash: "2"}, {path: "c", hash: "9"}, {path: "d", hash: "9"}, {path: "e", hash: "8"}}
	linked := map[string]bool{"e": true, "elsewhere": true}
	for limit, want := range map[int]string{0: "abcde", 1: "e", 3: "cde", 4: "acde", 5: "abcde", 9: "abcde"} {
		var got strings.Builder
		for _, d := range choose(slices.Clone(docs), linked, limit) {
			got.WriteString(d.path)
		}
		if got.String() != want {
			t.Errorf("limit %d chooses %q, want %q", limit, got.String(), want)
		}
	}
}

// TestChange: each kind of change is made, the same ones for a seed, and none
// of them in the files.
func TestChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, contents := range map[string]string{"a": "one", "b": "one", "c": "three", "d.go": "package d"} {
		writeFile(t, dir, name, contents)
	}
	docs, _, err := listDocuments(t.Context(), dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	clusters := []index.Cluster{{Canonical: "a", Documents: 2}}
	var first map[string]index.Document
	for range 2 {
		c := newCorpus(dir, docs)
		ch, err := c.change(3, clusters)
		if err != nil {
			t.Fatal(err)
		}
		if ch.deleted != 1 || ch.added != 2 || ch.changed != 2 {
			t.Errorf("%+v: want one of each kind, and two documents added", ch)
		}
		if slices.Contains(c.names(), "a") {
			t.Error("the canonical document of the cluster is still there")
		}
		if !slices.Contains(c.names(), "demo/added0/added0.go") || !slices.Contains(ch.names, "a") {
			t.Errorf("documents %q, changed %q", c.names(), ch.names)
		}
		if got := index.Parse("demo/added0/link.go", c.overlay["demo/added0/link.go"].Contents); !slices.Equal(got, []string{"demo/added0/added0.go"}) {
			t.Errorf("the added link leads to %q", got)
		}
		if first != nil && !reflect.DeepEqual(c.overlay, first) {
			t.Errorf("the same seed chose %v and %v", slices.Sorted(maps.Keys(first)), ch.names)
		}
		first = c.overlay
	}
	again, _, err := listDocuments(t.Context(), dir, 0)
	if err != nil || !reflect.DeepEqual(again, docs) {
		t.Errorf("the files are not what they were: %v, %v", again, err)
	}
	// Everything may be deleted.
	c := newCorpus(dir, docs)
	for _, d := range docs {
		c.overlay[d.path] = index.Document{Name: d.path, Deleted: true}
	}
	if ch, err := c.change(1, nil); err != nil || ch.deleted+ch.added+ch.changed != 0 {
		t.Errorf("changes of nothing: %+v, %v", ch, err)
	}
}

func TestSourceTreeMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("GOROOT", "")
	_, err := sourceTree()
	var code *cli.Error
	if !errors.As(err, &code) || code.Code != cli.ExitUsage || !strings.Contains(err.Error(), "--dir") {
		t.Errorf("without a tool chain: %v", err)
	}
}
