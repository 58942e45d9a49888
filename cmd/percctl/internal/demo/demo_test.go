package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var files = map[string]string{
	"a":         "one",
	"b/x":       "one",
	"b/y":       "",
	"b/c/ö \n":  "two\x00\xff",
	"b/c/again": "one",
	"z":         "",
}

func documents() (docs []document) {
	for name, contents := range files {
		docs = append(docs, document{name, digest([]byte(contents)), len(contents)})
	}
	return docs
}

func newEnv(t *testing.T, opts ...txntest.Option) *txntest.Env {
	t.Helper()
	env := txntest.New(t, opts...)
	for _, spec := range tables {
		env.InitTable(spec)
	}
	return env
}

// TestUpdateDocument runs the transaction for each document twice, all at a
// time.
func TestUpdateDocument(t *testing.T) {
	t.Parallel()
	env := newEnv(t, txntest.WithConfig(clientConfig(nil)))
	for range 2 {
		var g errgroup.Group
		for name, contents := range files {
			for range 2 {
				g.Go(func() error {
					_, err := updateDocument(t.Context(), env.Client, name, []byte(contents))
					return err
				})
			}
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	want, _ := compute(documents())
	got, commits, err := readState(t.Context(), env.Client)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range compare(got, want) {
		t.Error(m)
	}
	told := map[int]tso.Timestamp{}
	docs := documents()
	for id, d := range docs {
		told[id] = commits[d.path]
	}
	mismatches, committed := compareCommits(docs, told, commits)
	if len(mismatches) > 0 || committed != len(files) {
		t.Errorf("%d commits for %d documents; %q", committed, len(files), mismatches)
	}
	told[0]++
	if mismatches, _ := compareCommits(docs, told, commits); len(mismatches) != 1 {
		t.Errorf("a commit that was acknowledged and is not there: %q", mismatches)
	}
}

func TestCompute(t *testing.T) {
	t.Parallel()
	got, clusters := compute(documents())
	one, two, empty := digest([]byte("one")), digest([]byte("two\x00\xff")), digest(nil)
	want := state{}
	for row, columns := range map[string]map[txn.Column]string{
		one: {
			canonicalURL: "a", clusterCount: "3", clusterBytes: "9",
			{Family: "members", Qualifier: "a"}: "", {Family: "members", Qualifier: "b/x"}: "", {Family: "members", Qualifier: "b/c/again"}: "",
		},
		two: {
			canonicalURL: "b/c/ö \n", clusterCount: "1", clusterBytes: "5",
			{Family: "members", Qualifier: "b/c/ö \n"}: "",
		},
		empty: {
			canonicalURL: "b/y", clusterCount: "2", clusterBytes: "0",
			{Family: "members", Qualifier: "b/y"}: "", {Family: "members", Qualifier: "z"}: "",
		},
	} {
		for c, value := range columns {
			want.set(dupsTable, row, c, value)
		}
	}
	for dir, totals := range map[string][2]string{".": {"2", "3"}, "b": {"2", "3"}, "b/c": {"2", "8"}} {
		want.set(directoriesTable, dir, totalDocuments, totals[0])
		want.set(directoriesTable, dir, totalBytes, totals[1])
	}
	for name, contents := range files {
		want.set(documentsTable, name, contentsDocument, digest([]byte(contents)))
		want.set(documentsTable, name, contentsHash, digest([]byte(contents)))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("differences: %q", compare(got, want))
	}
	if want := []cluster{{"a", 3, 3}, {"b/y", 2, 0}}; !reflect.DeepEqual(clusters, want) {
		t.Errorf("clusters %v, want %v", clusters, want)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	a, b := state{}, state{}
	a.set("t", "same", contentsHash, "x")
	b.set("t", "same", contentsHash, "x")
	if m := compare(a, b); len(m) != 0 {
		t.Errorf("equal states differ: %q", m)
	}
	a.set("t", "differs", contentsHash, "x")
	b.set("t", "differs", contentsHash, "y")
	a.set("t", "only got", contentsHash, "")
	b.set("t", "only wanted", contentsHash, "")
	want := []string{
		`t/differs/contents:hash: "x", want "y"`,
		`t/only%20got/contents:hash: "", want nothing`,
		`t/only%20wanted/contents:hash: missing, want ""`,
	}
	if got := compare(a, b); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	var code *cli.Error
	if err := verdict(&summary{Mismatches: 1}); !errors.As(err, &code) || code.Code != cli.ExitFound {
		t.Errorf("verdict on a mismatch: %v", err)
	}
	if err := verdict(&summary{}); err != nil {
		t.Errorf("verdict on nothing: %v", err)
	}
}

func TestListDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, contents string) {
		t.Helper()
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(contents), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat(strings.Repeat("l", 200)+"/", 15) + "file"
	write("b/file", "1")
	write("a \xff", "22")
	write("huge", "")
	write(long, "")
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
	if want := []document{{"a \xff", digest([]byte("22")), 2}, {"b/file", digest([]byte("1")), 1}}; !reflect.DeepEqual(docs, want) {
		t.Errorf("documents %v, want %v", docs, want)
	}
	if want := []string{"huge", long}; !reflect.DeepEqual(skipped, want) {
		t.Errorf("skipped %q", skipped)
	}
	if docs, _, err := listDocuments(t.Context(), dir, 1); err != nil || len(docs) != 1 {
		t.Errorf("limit 1: %v, %v", docs, err)
	}

	// A file that vanishes, or changes, is named.
	w := &worker{dir: dir}
	if _, err := w.update(t.Context(), "gone", ""); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("vanished file: %v", err)
	}
	if _, err := w.update(t.Context(), "b/file", digest([]byte("before"))); err == nil || !strings.Contains(err.Error(), "b/file changed") {
		t.Errorf("changed file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := listDocuments(ctx, dir, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
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
