package mutant_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/mutant"
)

const root = "../../.."

// TestMutantsApply checks that each planted bug still fits the source. If it fails,
// rewrite the mutant's edit for the code that is the protection now.
func TestMutantsApply(t *testing.T) {
	all, err := mutant.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("%d mutants", len(all))
	}
	classes := map[string]bool{}
	for _, m := range all {
		if _, err := m.Apply(root); err != nil {
			t.Error(err)
		}
		classes[m.Class] = true
	}
	for _, class := range strings.Fields("- 1 2 3 4 5 6 7 8 9 10 11 12 13") {
		if !classes[class] {
			t.Errorf("no mutant of class %s", class)
		}
	}
}

// TestRunsNameTests finds runs whose test was renamed or has moved to another package:
// they run nothing.
func TestRunsNameTests(t *testing.T) {
	all, err := mutant.Load(root)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{} // by package
	for _, m := range all {
		for _, run := range m.Runs {
			names, ok := tests[run.Package]
			if !ok {
				names = testsOf(t, run.Package)
				tests[run.Package] = names
			}
			// The part for the test itself, without those for subtests. A slash in
			// parentheses is not in use.
			top, _, _ := strings.Cut(run.Tests, "/")
			if re := regexp.MustCompile(top); !slices.ContainsFunc(names, re.MatchString) {
				t.Errorf("mutant %s: no test of %s is named like %s", m.Name, run.Package, top)
			}
		}
	}
}

func testsOf(t *testing.T, pkg string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range testFunc.FindAllSubmatch(b, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

func TestApply(t *testing.T) {
	m := mutant.Mutant{Name: "m", Edits: []mutant.Edit{{File: "go.mod", Old: "module ", New: "nodule "}}}
	changed, err := m.Apply(root)
	if err != nil || len(changed) != 1 {
		t.Fatal(changed, err)
	}
	for _, text := range changed {
		if !strings.HasPrefix(text, "nodule ") {
			t.Errorf("changed to %.20q", text)
		}
	}
	for _, e := range []mutant.Edit{
		{File: "go.mod", Old: "no such text"},
		{File: "go.mod", Old: "\n"},
		{File: "no/such.file", Old: "x"},
	} {
		m.Edits = []mutant.Edit{e}
		if _, err := m.Apply(root); !errors.Is(err, mutant.ErrStale) {
			t.Errorf("%+v: %v, want ErrStale", e, err)
		}
	}
}

func TestParse(t *testing.T) {
	const good = "What goes\nwrong.\n\nclass: 5\nrun: ./txn TestA\nrun: ./tso .\n-- txn/a.go --\n\told\n====\n\tnew\n-- txn/a.go --\nx\n====\n"
	m, err := mutant.Parse("name", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "name" || m.Why != "What goes wrong." || m.Class != "5" || !slices.Equal(m.Runs, []mutant.Run{{Package: "./txn", Tests: "TestA"}, {Package: "./tso", Tests: "."}}) {
		t.Errorf("%+v", m)
	}
	if !slices.Equal(m.Edits, []mutant.Edit{{File: "txn/a.go", Old: "\told", New: "\tnew"}, {File: "txn/a.go", Old: "x", New: ""}}) {
		t.Errorf("%+v", m.Edits)
	}
	for _, bad := range []string{"", "x\nclass: 1\nrun: ./txn\n-- a --\nb\n====\n", strings.ReplaceAll(good, "====\n", ""), strings.ReplaceAll(good, "class: 5\n", "")} {
		if _, err := mutant.Parse("name", []byte(bad)); err == nil {
			t.Errorf("%q was parsed, want an error", bad)
		}
	}
}
