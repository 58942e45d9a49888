package house_test

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/house"
	"github.com/percolator-bigtable/percolator/txn"
)

const (
	root   = "../.."
	module = "github.com/percolator-bigtable/percolator/"
)

// The bounds of a package without its tests. bbolt's largest cycle has 9 files, that of
// client-go's transactions 6.
const (
	maxCycle = 12
	maxFiles = 30
	maxLines = 4500
)

// maxCommandLines bounds everything below cmd without its tests. What is no command line
// belongs into the rooms of the library, where a service can use it: see txn/admin.
// (27,400 lines were in cmd before it had a bound.)
const maxCommandLines = 18_000

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
	{"txn/internal/ahead", []string{"tso", "txn/format", "txn/internal/store"}},
	{"txn/internal/latch", []string{"tso", "txn/format", "txn/internal/store"}},
	{"txn/internal/journal", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/store"}},
	{"txn/internal/changed", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/store"}},
	{"txn/internal/recovery", []string{"tso", "txn/format", "txn/internal/recordpb", "txn/internal/gctime", "txn/internal/settled", "txn/internal/telemetry", "txn/internal/store", "txn/internal/journal"}},
	{"txn/internal/bulk", []string{"tso", "txn/format", "txn/internal/telemetry", "txn/internal/store", "txn/internal/recovery"}},
	{"txn/internal/families", []string{"txn/format", "txn/internal/store"}},
	{"txn/internal/access", []string{"tso", "txn/format", "txn/internal/recovery"}},
	{"txn", []string{"tso", "txn/format", "txn/internal/"}},
	{"txn/row", []string{"txn", "txn/format"}},
	{"txn/page", []string{"tso", "txn"}},
	{"txn/pace", nil},
	{"txn/jobs", []string{"tso", "txn", "txn/changes", "txn/pace"}},
	{"txn/profile", []string{"txn"}},
	{"txn/many", []string{"tso", "txn", "txn/format"}},
	{"txn/idempotency", []string{"tso", "txn"}},
	{"txn/index", []string{"tso", "txn", "txn/format", "txn/jobs", "txn/page", "txn/changes"}},
	{"txn/gc", []string{"tso", "txn", "txn/format", "txn/internal/", "txn/pace"}},
	{"txn/admin", []string{"tso", "txn", "txn/format", "txn/internal/", "txn/changes", "txn/gc", "txn/pace"}},
	{"txn/admin/bulkprewrite", []string{"tso", "txn", "txn/format", "txn/internal/"}},
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

func load(t *testing.T, patterns ...string) []house.Package {
	t.Helper()
	all, err := house.Load(root, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDirection holds the direction of dependencies of docs/architecture.md.
func TestDirection(t *testing.T) {
	checked := 0
	for _, p := range load(t, "./...") {
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

// TestSizes: no package is too large to be understood as one.
func TestSizes(t *testing.T) {
	for _, p := range load(t, "./...") {
		path := strings.TrimPrefix(p.Path, module)
		if len(p.Cycle) > maxCycle {
			t.Errorf("%s: %d files depend on each other, at most %d may: %v", path, len(p.Cycle), maxCycle, p.Cycle)
		}
		if len(p.Files) > maxFiles || p.Lines > maxLines {
			t.Errorf("%s: %d files with %d lines; at most %d files and %d lines", path, len(p.Files), p.Lines, maxFiles, maxLines)
		}
	}
}

// TestCommandLines: cmd holds command lines, and not the logic behind them. Files for all
// systems count.
func TestCommandLines(t *testing.T) {
	lines := 0
	err := filepath.WalkDir(filepath.Join(root, "cmd"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		lines += bytes.Count(text, []byte("\n"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines > maxCommandLines || lines < maxCommandLines/2 {
		t.Errorf("cmd has %d lines without tests; at most %d", lines, maxCommandLines)
	}
}

// TestMethods: the methods of a type are in the file that declares it, and no struct of
// the library keeps a context.
func TestMethods(t *testing.T) {
	for _, p := range load(t, "./txn/...", "./notify/...", "./tso/...") {
		path := strings.TrimPrefix(p.Path, module)
		if strings.HasPrefix(path, "txn/txntest") {
			continue // its faults hold the contexts of requests that they stop
		}
		for _, s := range p.Strays {
			t.Errorf("%s: method %s, not in the file of its type", path, s)
		}
		for _, c := range p.StoredContexts {
			t.Errorf("%s keeps a context in a struct", c)
		}
	}
}

// TestAPI bounds what an application sees of package txn.
func TestAPI(t *testing.T) {
	if n := reflect.TypeFor[*txn.Client]().NumMethod(); n > 15 {
		t.Errorf("Client has %d exported methods, at most 15", n)
	}
	if n := reflect.TypeFor[txn.Config]().NumField(); n > 20 {
		t.Errorf("Config has %d fields, at most 20", n)
	}
	out, err := exec.Command("go", "doc", "-C", root, "-all", "./txn").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.SplitSeq(string(out), "\n") {
		if strings.HasPrefix(line, "func") || strings.HasPrefix(line, "type") {
			n++
		}
	}
	if n > 80 || n < 40 {
		t.Errorf("go doc lists %d functions and types of package txn, at most 80", n)
	}
}

// errorPrefix is how the text of an error begins that names a package.
var errorPrefix = regexp.MustCompile(`^"(percolator|txn|txntest|format|gc|admin|conformance|soak|changes|row|page|jobs|idempotency|index|notify|tso|server): `)

// TestErrorPrefixes: an error names the package that an application called. Packages below
// txn do not know which one that is, so they name the project. Everything of tso names tso.
func TestErrorPrefixes(t *testing.T) {
	checked := 0
	for _, p := range load(t, "./txn/...", "./notify/...", "./tso/...") {
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
	for _, p := range load(t, "./...") {
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
