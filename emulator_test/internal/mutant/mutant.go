// Package mutant plants bugs. A mutant is a small change of the library's source
// that removes one protection of the protocol, or repeats a mistake that other
// systems made. The test suite has to catch each of them; this proves that the suite
// can fail.
//
// Mutants are data: each is a file in emulator_test/testdata/mutants. Go's -overlay
// flag puts a mutant into the build of its own test run, and into no other.
package mutant

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Dir is where the mutants are, in the module.
const Dir = "emulator_test/testdata/mutants"

// A Mutant is one planted bug.
type Mutant struct {
	// Name is the file's name without .txtar.
	Name string
	// Why says what goes wrong.
	Why string
	// Class is "-" for a protection that only this library has, or the number of a
	// mistake that other systems made:
	//
	//	1  a commit of the primary with an unknown outcome is reported as success
	//	   or failure, or retried without a check
	//	2  a prewrite takes effect after its rollback
	//	3  a prewrite is not idempotent
	//	4  the primary changes or is missing
	//	5  resolver and owner both succeed
	//	6  a read happens before the rollback that it relies on
	//	7  success is reported for a transaction that was rolled back
	//	8  garbage is collected before locks are resolved
	//	9  a commit_ts is taken too early, or two are equal
	//	10 the oracle goes back or repeats a timestamp
	//	11 a notification is lost or duplicated
	//	12 an error of a prewrite is ignored
	//	13 a retry uses old reads
	//
	// 15, 16 and 18 are hazards of docs/protocol.md.
	Class string
	// Runs are the tests to try first.
	Runs  []Run
	Edits []Edit
}

// A Run names tests of one package.
type Run struct {
	Package string // "./txn"
	Tests   string // for go test -run; "." is all of them
}

// An Edit replaces a text that occurs exactly once in a file.
type Edit struct {
	File     string // in the module, with slashes
	Old, New string
}

// Load reads the mutants of the module at root, in order of their names.
func Load(root string) ([]Mutant, error) {
	files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(Dir), "*.txtar"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("mutant: no mutants in %s below %s", Dir, root)
	}
	slices.Sort(files)
	var all []Mutant
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		m, err := Parse(strings.TrimSuffix(filepath.Base(f), ".txtar"), b)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// separator is the line between the old text and the new one.
const separator = "====\n"

// Parse reads one mutant. The file begins with what goes wrong, then has the lines
// "class:" and "run:". For each edit a file follows with the old text, a line ====, and
// the new text.
func Parse(name string, b []byte) (Mutant, error) {
	fail := func(format string, args ...any) (Mutant, error) {
		return Mutant{}, fmt.Errorf("mutant %s: %s", name, fmt.Sprintf(format, args...))
	}
	a := txtar.Parse(b)
	m := Mutant{Name: name}
	var why []string
	for line := range strings.SplitSeq(string(a.Comment), "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "class":
			m.Class = value
		case "run":
			pkg, tests, ok := strings.Cut(value, " ")
			if !ok {
				return fail("%q is not of the form run: PACKAGE TESTS", line)
			}
			m.Runs = append(m.Runs, Run{pkg, tests})
		default:
			why = append(why, line)
		}
	}
	m.Why = strings.Join(strings.Fields(strings.Join(why, " ")), " ")
	for _, f := range a.Files {
		old, mutated, ok := strings.Cut(string(f.Data), separator)
		if !ok {
			return fail("the edit of %s has no line ====", f.Name)
		}
		m.Edits = append(m.Edits, Edit{f.Name, strings.TrimSuffix(old, "\n"), strings.TrimSuffix(mutated, "\n")})
	}
	if m.Why == "" || m.Class == "" || len(m.Runs) == 0 || len(m.Edits) == 0 {
		return fail("it needs a text, a class, a run and an edit")
	}
	return m, nil
}

// ErrStale says that a mutant does not fit the source any more.
var ErrStale = errors.New("stale mutant")

// Apply returns the contents of the changed files of the module at root, by path.
func (m Mutant) Apply(root string) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range m.Edits {
		path := filepath.Join(root, filepath.FromSlash(e.File))
		text, ok := changed[path]
		if !ok {
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("mutant %s: %w: %w", m.Name, ErrStale, err)
			}
			text = string(b)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("mutant %s: %w: the text to replace occurs %d times in %s, want once:\n%s", m.Name, ErrStale, n, e.File, e.Old)
		}
		changed[path] = strings.Replace(text, e.Old, e.New, 1)
	}
	return changed, nil
}
