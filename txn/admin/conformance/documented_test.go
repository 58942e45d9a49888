package conformance_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn/admin/conformance"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

var update = flag.Bool("update", false, "write the lists in docs again")

const root = "../../../"

// TestDocumented: the pages list the assumptions and the rules of the strict server as the
// packages do.
func TestDocumented(t *testing.T) {
	for _, c := range []struct{ page, name, list string }{
		{"docs/reference/assumptions.md", "assumptions", assumptions()},
		{"docs/reference/assumptions.md", "rules", rules()},
	} {
		text, err := os.ReadFile(root + c.page)
		if err != nil {
			t.Fatal(err)
		}
		got := string(text)
		want := replace(t, got, c.name, c.list)
		if *update {
			if err := os.WriteFile(root+c.page, []byte(want), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got != want {
			t.Errorf("%s is out of date: go test ./txn/admin/conformance -run %s -update\n%s", c.page, t.Name(), cmp.Diff(got, want))
		}
	}
}

func replace(t *testing.T, text, name, list string) string {
	t.Helper()
	begin, end := "<!-- "+name+": generated -->\n", "<!-- end of "+name+" -->\n"
	before, rest, ok := strings.Cut(text, begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("there is no list %s", name)
	}
	return before + begin + list + end + after
}

func assumptions() string {
	var out strings.Builder
	group := ""
	usual := map[conformance.Class]string{conformance.Required: usualAdvice(conformance.Required), conformance.Optional: usualAdvice(conformance.Optional)}
	for _, a := range conformance.All() {
		if a.Group != group {
			group = a.Group
			fmt.Fprintf(&out, "\n### %s\n\n| Id | Assumption | Needed by | Promised by | Without it | What to do |\n|---|---|---|---|---|---|\n", group)
		}
		id := "`" + a.ID + "`"
		if a.Class == conformance.Optional {
			id += " (optional)"
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s | %s |\n", id, a.Title, a.Used, source(a.Source), a.Breaks, strings.TrimSpace(strings.ReplaceAll(a.Advice, usual[a.Class], "")))
	}
	return out.String() + "\n"
}

// usualAdvice is the advice of most assumptions of a class. The page says it once.
func usualAdvice(class conformance.Class) (usual string) {
	count := map[string]int{}
	for _, a := range conformance.All() {
		if a.Class == class {
			count[a.Advice]++
		}
	}
	for advice, n := range count {
		if n > count[usual] {
			usual = advice
		}
	}
	return usual
}

var address = regexp.MustCompile(`https://\S+[a-z0-9]`)

// source makes links of addresses.
func source(s string) string {
	return address.ReplaceAllStringFunc(s, func(url string) string {
		name := url
		for _, known := range []struct{ prefix, name string }{
			{"https://cloud.google.com/bigtable/docs/reference/data/", "data API"}, {"https://cloud.google.com/bigtable/docs/reference/admin/", "admin API"},
			{"https://cloud.google.com/bigtable/", "documentation"}, {"https://github.com/", "issue"},
		} {
			if strings.HasPrefix(url, known.prefix) {
				name = known.name
				break
			}
		}
		if _, anchor, ok := strings.Cut(url, "#"); ok {
			name += ", " + anchor
		}
		return "[" + name + "](" + url + ")"
	})
}

func rules() string {
	var out strings.Builder
	out.WriteString("\n| Rule | Refused | Code | Source |\n|---|---|---|---|\n")
	for _, r := range strict.Rules {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.ID, r.Text, r.Code, source(r.Source))
	}
	return out.String() + "\n"
}

var fileName = regexp.MustCompile("`((?:txn|tso|notify|docs)/[a-z0-9_/.]+\\.(?:go|md))`")

// TestComplete: each assumption has all texts, another id, and names files that there are.
func TestComplete(t *testing.T) {
	ids := map[string]bool{}
	for _, a := range conformance.All() {
		if ids[a.ID] || a.ID == "" {
			t.Errorf("the id %q is there twice", a.ID)
		}
		ids[a.ID] = true
		for _, s := range []string{a.Group, a.Title, a.Used, a.Source, a.Breaks, a.Advice} {
			if s == "" || strings.Contains(s, "|") {
				t.Errorf("%s: bad text %q", a.ID, s)
			}
		}
		if a.Class != conformance.Required && a.Class != conformance.Optional {
			t.Errorf("%s: class %q", a.ID, a.Class)
		}
		if !strings.Contains(a.Source, "https://") && !strings.HasPrefix(a.Source, "assumed") {
			t.Errorf("%s: %q is no public source", a.ID, a.Source)
		}
		files := fileName.FindAllStringSubmatch(a.Used, -1)
		if len(files) == 0 && !strings.HasPrefix(a.Used, "nothing") {
			t.Errorf("%s: %q names no file", a.ID, a.Used)
		}
		for _, f := range files {
			if _, err := os.Stat(filepath.Join(root, f[1])); err != nil {
				t.Errorf("%s: %v", a.ID, err)
			}
		}
	}
	if len(ids) < 50 {
		t.Errorf("only %d assumptions", len(ids))
	}
}
