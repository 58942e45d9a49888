package mutant

import (
	"bytes"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const moduleRoot = "../../.."

// changeable are the packages that mutants change.
var changeable = []string{"./txn/...", "./notify/...", "./tso/...", "./cmd/percctl/..."}

// TestMutantsCompile finds mutants whose new text does not compile: against those,
// every test run fails, and shows nothing. It checks the types of the package that a
// mutant changes, which takes milliseconds; the packages of a mutant that changes several are
// built.
func TestMutantsCompile(t *testing.T) {
	long.Test(t, "it builds what mutants change")
	root, err := filepath.Abs(moduleRoot)
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	c := newChecker(t, root)
	for _, m := range mutants {
		changed, err := m.Apply(root)
		if err != nil {
			t.Error(err)
			continue
		}
		dirs := map[string]bool{}
		for path := range changed {
			dirs[filepath.Dir(path)] = true
		}
		if len(dirs) > 1 {
			build(t, root, m, slices.Collect(maps.Keys(dirs)))
			continue
		}
		for dir := range dirs {
			if err := c.check(dir, changed); err != nil {
				t.Errorf("mutant %s: %v", m.Name, err)
			}
		}
	}
}

// A checker checks types of single packages against what the others export.
type checker struct {
	fset     *token.FileSet
	imports  types.Importer
	packages map[string][]string // path and files, by directory
}

func newChecker(t *testing.T, root string) *checker {
	t.Helper()
	exports := map[string]string{}
	for line := range strings.Lines(list(t, root, "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}")) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[path] = file
	}
	c := &checker{fset: token.NewFileSet(), packages: map[string][]string{}}
	for line := range strings.Lines(list(t, root, "-f", `{{.Dir}}|{{.ImportPath}}|{{join .GoFiles "|"}}`)) {
		fields := strings.Split(strings.TrimSpace(line), "|")
		c.packages[fields[0]] = fields[1:]
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c
}

func list(t *testing.T, root string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"list"}, args...), changeable...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.Bytes())
	}
	return string(out)
}

func (c *checker) check(dir string, changed map[string]string) error {
	p, ok := c.packages[dir]
	if !ok {
		return errors.New("it changes no package of the library or of percctl: " + dir)
	}
	var files []*ast.File
	for _, name := range p[1:] {
		var source any
		path := filepath.Join(dir, name)
		if text, ok := changed[path]; ok {
			source = text
		}
		f, err := parser.ParseFile(c.fset, path, source, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	_, err := (&types.Config{Importer: c.imports}).Check(p[0], c.fset, files, nil)
	return err
}

func build(t *testing.T, root string, m Mutant, dirs []string) {
	t.Helper()
	overlay, err := Runner{Root: root}.overlay(m, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", overlay}, dirs...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("mutant %s: %v\n%s", m.Name, err, out)
	}
}
