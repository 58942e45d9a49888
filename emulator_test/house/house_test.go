package house_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/house"
)

const (
	root   = "../.."
	module = "github.com/percolator-bigtable/percolator/"
)

// mayImport says which packages of the module each room may import; a slash at the end
// stands for all below it.
var mayImport = []struct {
	room  string
	lower []string
}{
	{"tso", []string{"tso"}},
	{"txn/format", []string{"tso", "txn/internal/recordpb"}},
	{"txn/internal/recordpb", nil},
	{"txn/internal/gctime", nil},
	{"txn/internal/telemetry", []string{"tso", "txn/format"}},
	{"txn/internal/settled", []string{"tso", "txn/format"}},
	{"txn/internal/store", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/gctime", "txn/internal/settled", "txn/internal/telemetry"}},
	{"txn/internal/buffer", []string{"txn/format", "txn/internal/store"}},
	{"txn/internal/latch", []string{"tso", "txn/format", "txn/internal/store"}},
	{"txn/internal/journal", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/store"}},
	{"txn/internal/changed", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/store"}},
	{"txn/internal/recovery", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/gctime", "txn/internal/settled", "txn/internal/telemetry", "txn/internal/store", "txn/internal/journal"}},
	{"txn/internal/families", []string{"txn/format", "txn/internal/store"}},
	{"txn/internal/access", []string{"tso", "txn/format", "txn/internal/recovery", "txn/internal/store"}},
	{"txn", []string{"tso", "txn/format", "txn/internal/"}},
	{"txn/internal/pace", nil},
	{"txn/jobs", []string{"tso", "txn", "txn/changes", "txn/internal/pace"}},
	{"txn/idempotency", []string{"tso", "txn"}},
	{"txn/index", []string{"tso", "txn", "txn/format", "txn/internal/access", "txn/jobs", "txn/changes"}},
	{"txn/gc", []string{"tso", "txn", "txn/format", "txn/internal/"}},
	{"txn/admin", []string{"tso", "txn", "txn/format", "txn/internal/", "txn/changes", "txn/gc"}},
	{"txn/admin/words", []string{"tso"}},
	{"txn/admin/capacity", nil},
	{"txn/admin/conformance", []string{"txn/admin/capacity"}},
	{"txn/admin/conformance/soak", []string{"tso", "txn", "txn/format", "txn/changes", "txn/admin", "txn/admin/conformance", "txn/txntest", "txn/txntest/history", "notify"}},
	{"txn/txntest/history", nil},
	{"txn/internal/front", nil},
	{"txn/internal/strict", []string{"txn/internal/front"}},
	{"txn/admin/watch", []string{"tso", "txn", "txn/format", "txn/changes"}},
	{"txn/admin/transfer", []string{"tso", "txn", "txn/format", "txn/admin", "txn/admin/words"}},
	{"txn/admin/doctor", []string{"tso", "txn", "txn/format", "txn/gc", "txn/changes", "txn/admin", "txn/admin/words"}},
	{"txn/changes", []string{"tso", "txn", "txn/format", "txn/internal/"}},
	{"notify", []string{"tso", "txn", "txn/format", "txn/changes", "txn/admin"}},
}

// loaded loads all packages once.
var loaded = sync.OnceValues(func() ([]house.Package, error) { return house.Load(root, "./...") })

// load returns the packages of these directories of the module, or all.
func load(t *testing.T, below ...string) []house.Package {
	t.Helper()
	all, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	if len(below) == 0 {
		return all
	}
	var some []house.Package
	for _, dir := range below {
		n := len(some)
		for _, p := range all {
			if path := strings.TrimPrefix(p.Path, module); path == dir || strings.HasPrefix(path, dir+"/") {
				some = append(some, p)
			}
		}
		if len(some) == n {
			t.Fatalf("no package in %s", dir)
		}
	}
	return some
}

// TestDirection holds the direction of dependencies of docs/architecture.md.
func TestDirection(t *testing.T) {
	checked := 0
	for _, p := range load(t) {
		path := strings.TrimPrefix(p.Path, module)
		for _, imported := range p.Imports {
			name, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			checked++
			if !strings.HasPrefix(path, "cmd/") && strings.HasPrefix(name, "cmd/") && !strings.HasPrefix(path, "emulator_test/") {
				t.Errorf("%s imports %s; only emulator_test uses what is below cmd", path, name)
			}
			if strings.HasPrefix(path, "cmd/") && strings.HasPrefix(name, "emulator_test/") {
				t.Errorf("%s imports %s, which is for developers of this project", path, name)
			}
			for _, m := range mayImport {
				if path == m.room && !allowed(m.lower, name) {
					t.Errorf("%s imports %s; it may import %v", path, name, m.lower)
				}
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d imports were checked", checked)
	}
}

func allowed(lower []string, name string) bool {
	return slices.ContainsFunc(lower, func(l string) bool {
		return name == l || strings.HasPrefix(name, strings.TrimSuffix(l, "/")+"/") && (strings.HasSuffix(l, "/") || l == "tso")
	})
}

// TestContexts: no struct of the library keeps a context.
func TestContexts(t *testing.T) {
	for _, p := range load(t, "txn", "notify", "tso") {
		path := strings.TrimPrefix(p.Path, module)
		if strings.HasPrefix(path, "txn/txntest") {
			continue // its faults hold the contexts of requests that they stop
		}
		for _, c := range p.StoredContexts {
			t.Errorf("%s keeps a context in a struct", c)
		}
	}
}

// TestAliases: who reads the documentation of a type sees its fields.
func TestAliases(t *testing.T) {
	for _, p := range load(t, "txn", "notify", "tso") {
		if strings.Contains(p.Path, "/internal/") {
			continue
		}
		for _, f := range p.HiddenFields {
			t.Errorf("the comment of the alias does not name the field: %s", f)
		}
	}
}

// errorPrefix is how the text of an error begins that names a package.
var errorPrefix = regexp.MustCompile(`^"(percolator|txn|txntest|format|gc|admin|conformance|soak|changes|row|page|jobs|idempotency|index|notify|tso|server): `)

// TestErrorPrefixes: an error names the package that an application called. Packages below
// txn do not know which one that is, so they name the project. Everything of tso names tso.
func TestErrorPrefixes(t *testing.T) {
	checked := 0
	for _, p := range load(t, "txn", "notify", "tso") {
		dir := strings.TrimPrefix(p.Path, module)
		want := path.Base(dir)
		if strings.HasPrefix(dir, "tso/") {
			want = "tso"
		}
		if dir == "txn/format" || strings.HasPrefix(dir, "txn/internal/") {
			want = "percolator"
		}
		for _, f := range p.Files {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, f), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Errorf", "New", "Ended"}, f.Sel.Name) {
					return true
				}
				for _, arg := range call.Args {
					if lit, ok := arg.(*ast.BasicLit); ok {
						if m := errorPrefix.FindStringSubmatch(lit.Value); m != nil {
							if checked++; m[1] != want {
								t.Errorf("%s: an error begins %s, want %q", dir, lit.Value, want+": ")
							}
						}
					}
				}
				return true
			})
		}
	}
	if checked < 100 {
		t.Errorf("only %d errors were checked", checked)
	}
}

// TestPackageComments: every package says what it is.
func TestPackageComments(t *testing.T) {
	for _, p := range load(t) {
		if len(p.Files) == 0 {
			continue
		}
		dir := filepath.Join(root, strings.TrimPrefix(p.Path, module))
		fset := token.NewFileSet()
		var files []*ast.File
		for _, f := range p.Files {
			file, err := parser.ParseFile(fset, filepath.Join(dir, f), nil, parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		d, err := doc.NewFromFiles(fset, files, p.Path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(d.Doc) == "" {
			t.Errorf("%s has no package comment", strings.TrimPrefix(p.Path, module))
		}
	}
}
