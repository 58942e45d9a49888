package index

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/format"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, contents, want string }{
		{"a.go", "package a\nimport (\n\"fmt\"\nx \"net/http\"\n\"fmt\"\n_ \"golang.org/x/y\"\n)\nsyntax error", "fmt/fmt.go net/http/http.go vendor/golang.org/x/y/y.go"},
		{"cmd/a.go", "package a; import \"golang.org/x/y\"", "cmd/vendor/golang.org/x/y/y.go"},
		{"p/q/a.go", "package a; import \"../r\"", "p/r/r.go"},
		{"fmt/fmt.go", "package fmt; import (\"fmt\"; \"io\")", "io/io.go"},
		{"not.go", "no Go", ""},
		{"a.txt", "package a; import \"fmt\"", ""},
		{"d/p.html", `<a href="q.html#x"> <A class=y HREF='../r.html?z'> <a href="/s.html"> <a href="sub/"> <a href="p.html"> <a href="#top">`, "d/q.html d/sub/index.html r.html s.html"},
		{"p.html", `<a href="https://example.com/q.html"> <a href="//example.com/"> <a href="mailto:a@b"> <link href="style.css"> <a href="%zz">`, ""},
		{"p.html", `<a href="caf%C3%A9&amp;b.html"> <a href="../up.html">`, "café&b.html up.html"},
		{"p.html", `<a href="` + strings.Repeat("x", MaxName+1) + `">`, ""},
	} {
		if got := strings.Join(Parse(test.name, []byte(test.contents)), " "); got != test.want {
			t.Errorf("%s %q links to %q, want %q", test.name, test.contents, got, test.want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{nil, {"a"}, {"a b", "c\nd", "100%", "%0A", "\xff"}} {
		if got := decodeNames(encodeNames(names)); !slices.Equal(got, names) {
			t.Errorf("%q came back as %q", names, got)
		}
	}
}

// small is a set of documents with everything in it: a.html and b.html are
// equal, and so are x.html and y.html, which link to b.html. d.html links to
// a.html, b.html to nothing that there is.
var small = map[string]string{
	"a.html": link("gone.html"),
	"b.html": link("gone.html"),
	"x.html": link("b.html"),
	"y.html": link("b.html"),
	"d.html": link("a.html"),
}

func smallTables() table {
	AB, XY, D := Digest([]byte(link("gone.html"))), Digest([]byte(link("b.html"))), Digest([]byte(link("a.html")))
	want := table{
		// b.html has two in-links, a.html one: b.html is canonical, and serves both
		// clusters' links; x.html and y.html count once.
		"serving/b.html/doc:hash": AB, "serving/b.html/doc:duplicates": "a.html\n", "serving/b.html/doc:inlinks": "d.html\nx.html\n",
		"serving/x.html/doc:hash": XY, "serving/x.html/doc:duplicates": "y.html\n", "serving/x.html/doc:inlinks": "",
		"serving/d.html/doc:hash": D, "serving/d.html/doc:duplicates": "", "serving/d.html/doc:inlinks": "",

		"inlinks/a.html/source:d.html": "d.html",
		"inlinks/b.html/source:x.html": "x.html", "inlinks/b.html/source:y.html": "x.html",
		"inlinks/gone.html/source:a.html": "b.html", "inlinks/gone.html/source:b.html": "b.html",

		"dups/" + AB + "/member:a.html": "", "dups/" + AB + "/member:b.html": "",
		"dups/" + AB + "/cluster:canonical": "b.html", "dups/" + AB + "/cluster:served": "b.html",
		"dups/" + XY + "/member:x.html": "", "dups/" + XY + "/member:y.html": "",
		"dups/" + XY + "/cluster:canonical": "x.html", "dups/" + XY + "/cluster:served": "x.html",
		"dups/" + D + "/member:d.html":     "",
		"dups/" + D + "/cluster:canonical": "d.html", "dups/" + D + "/cluster:served": "d.html",
	}
	for _, d := range []struct{ name, hash, links, canonical string }{
		{"a.html", AB, "gone.html\n", "b.html"},
		{"b.html", AB, "gone.html\n", "b.html"},
		{"x.html", XY, "b.html\n", "x.html"},
		{"y.html", XY, "b.html\n", "x.html"},
		{"d.html", D, "a.html\n", "d.html"},
	} {
		row := "documents/" + d.name
		maps.Copy(want, table{
			row + "/contents:raw": d.hash, row + "/parsed:hash": d.hash, row + "/parsed:links": d.links,
			row + "/cluster:hash": d.hash, row + "/cluster:canonical": d.canonical,
			row + "/inverted:to": d.links, row + "/inverted:as": d.canonical,
		})
	}
	return want
}

func TestCompute(t *testing.T) {
	t.Parallel()
	res, err := Compute(seq(small))
	if err != nil {
		t.Fatal(err)
	}
	want := State{}
	for name, value := range smallTables() {
		c, err := format.ParseCell(name)
		if err != nil {
			t.Fatal(err)
		}
		want[c] = value
	}
	if m := Compare(res.State, want); len(m) > 0 {
		t.Errorf("%s", strings.Join(m, "\n"))
	}
	n := len(link("x.html"))
	if res.Documents != 5 || res.Links != 5 || res.Bytes != 3*n+2*len(link("gone.html")) {
		t.Errorf("%d documents, %d links, %d bytes", res.Documents, res.Links, res.Bytes)
	}
	if want := []Cluster{{"b.html", 2, len(link("gone.html"))}, {"x.html", 2, n}, {"d.html", 1, n}}; !reflect.DeepEqual(res.Clusters, want) {
		t.Errorf("clusters %v, want %v", res.Clusters, want)
	}
	broken := errors.New("broken")
	if _, err := Compute(func(yield func(Document, error) bool) { yield(Document{}, broken) }); !errors.Is(err, broken) {
		t.Errorf("a document that cannot be read: %v", err)
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	a, b := State{}, State{}
	a.set("t", "same", docHash, "x")
	b.set("t", "same", docHash, "x")
	if m := Compare(a, b); len(m) != 0 {
		t.Errorf("equal states differ: %q", m)
	}
	a.set("t", "differs", docHash, "x")
	b.set("t", "differs", docHash, "y")
	a.set("t", "only got", docHash, "")
	b.set("t", "only wanted", docHash, "")
	want := []string{
		`t/differs/doc:hash: "x", want "y"`,
		`t/only%20got/doc:hash: "", want nothing`,
		`t/only%20wanted/doc:hash: missing, want ""`,
	}
	if got := Compare(a, b); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
