package mutant

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// A Verdict is the result for one mutant.
type Verdict string

// The verdicts.
const (
	Caught   Verdict = "caught"
	Survived Verdict = "survived"
	// Broken: the mutant does not fit the source, or does not compile. That is an
	// error in the mutant, and not a success of the tests.
	Broken Verdict = "broken"
)

// A Result is the outcome of one mutant.
type Result struct {
	Mutant  string  `json:"mutant"`
	Class   string  `json:"class"`
	Why     string  `json:"why"`
	Verdict Verdict `json:"verdict"`
	// Test is the test that caught the mutant.
	Test string `json:"test,omitempty"`
	// Seconds is how long tests ran until one caught the mutant, and Build how long
	// the build took.
	Seconds float64 `json:"seconds"`
	Build   float64 `json:"build_seconds"`
	// Detail is the end of the failed test's output, or the error.
	Detail string `json:"detail,omitempty"`
}

// A Runner runs the suite against mutants of one module.
type Runner struct {
	// Root of the module.
	Root string
	// Limit is how long tests may run against one mutant.
	Limit time.Duration
}

// rest are the packages whose tests run against a mutant of a package, after the
// tests that the mutant names.
var rest = map[string][]string{
	"txn":    {"./txn/internal/store", "./txn/internal/recovery", "./txn/internal/latch", "./txn/gc", "./txn", "./notify", "./emulator_test"},
	"notify": {"./notify", "./emulator_test"},
	"tso":    {"./tso", "./tso/server"},
}

// Run runs the tests until one fails.
func (r Runner) Run(ctx context.Context, m Mutant) (result Result) {
	result = Result{Mutant: m.Name, Class: m.Class, Why: m.Why}
	broken := func(err error) Result {
		result.Verdict, result.Detail = Broken, err.Error()
		return result
	}
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return broken(err)
	}
	defer os.RemoveAll(dir)
	overlay, err := r.overlay(m, dir)
	if err != nil {
		return broken(err)
	}
	// The tests that it names come first, then all tests of their packages. Some
	// mutants are caught only by some schedules of goroutines.
	runs := m.Runs
	pkg, _, _ := strings.Cut(m.Edits[0].File, "/")
	for _, p := range rest[pkg] {
		runs = append(slices.Clip(runs), Run{p, "."})
	}
	left := r.Limit
	binaries := map[string]string{}
	for _, run := range runs {
		binary := binaries[run.Package]
		if binary == "" {
			began := time.Now()
			binary = filepath.Join(dir, fmt.Sprintf("test%d", len(binaries)))
			err := BuildTests(ctx, r.Root, overlay, binary, run.Package)
			result.Build += time.Since(began).Seconds()
			if err != nil {
				return broken(err)
			}
			binaries[run.Package] = binary
		}
		began := time.Now()
		caught, test, detail, err := r.test(ctx, binary, run, left)
		took := time.Since(began)
		left -= took
		result.Seconds += took.Seconds()
		switch {
		case err != nil:
			return broken(err)
		case caught:
			result.Verdict, result.Test, result.Detail = Caught, strings.TrimPrefix(run.Package, "./")+" "+test, detail
			return result
		case left <= 0:
			result.Verdict = Survived
			result.Detail = fmt.Sprintf("no test failed within %v", r.Limit)
			return result
		}
	}
	result.Verdict = Survived
	return result
}

// Compile builds the library with a mutant in it and runs no test. The error says
// why the mutant is broken.
func (r Runner) Compile(ctx context.Context, m Mutant) error {
	dir, err := os.MkdirTemp("", "mutant")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := r.overlay(m, dir)
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "./txn/...", "./notify/...", "./tso/...")
	build.Dir = r.Root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("it does not compile: %w\n%s", err, out)
	}
	return nil
}

// overlay writes the files that a mutant changes to dir, and returns the path of the
// list of them for go's -overlay flag.
func (r Runner) overlay(m Mutant, dir string) (string, error) {
	changed, err := m.Apply(r.Root)
	if err != nil {
		return "", err
	}
	return WriteOverlay(dir, changed)
}

// WriteOverlay writes texts of source files, by their paths, to dir, and returns the path
// of the list of them for go's -overlay flag.
func WriteOverlay(dir string, changed map[string]string) (string, error) {
	replace := map[string]string{}
	for path, text := range changed {
		to := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[path] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}

// BuildTests compiles the tests of a package of the module at root, with an overlay.
func BuildTests(ctx context.Context, root, overlay, binary, pkg string) error {
	// -vet=off, because vet may refuse a mutant.
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", binary, pkg)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("it does not compile: %w\n%s", err, out)
	}
	return nil
}

// test runs the tests of one package. If they run longer than the limit, they are
// stopped, and have caught nothing.
func (r Runner) test(ctx context.Context, binary string, run Run, limit time.Duration) (caught bool, test, detail string, err error) {
	tctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(tctx, binary, "-test.run", run.Tests, "-test.failfast", "-test.count=1", "-test.timeout", (limit + time.Minute).String())
	cmd.Dir = filepath.Join(r.Root, filepath.FromSlash(run.Package))
	cmd.Env = append(os.Environ(), long.Variable+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil && bytes.Contains(out.Bytes(), []byte("no tests to run")):
		return false, "", "", nil
	case err == nil, tctx.Err() != nil && ctx.Err() == nil:
		return false, "", "", nil
	case ctx.Err() != nil:
		return false, "", "", ctx.Err()
	case !errors.As(err, &exit):
		return false, "", "", err
	}
	return true, FailedTest(out.String()), tail(out.String()), nil
}

var (
	failLine  = regexp.MustCompile(`(?m)^( *)--- FAIL: (\S+)`)
	panicLine = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)$`)
)

// FailedTest returns the name of the first innermost test that failed.
func FailedTest(out string) string {
	name, depth := "", -1
	for _, m := range failLine.FindAllStringSubmatch(out, -1) {
		if len(m[1]) <= depth {
			break
		}
		name, depth = m[2], len(m[1])
	}
	if name == "" {
		if p := panicLine.FindString(out); p != "" {
			return p
		}
		return "exit without a test's failure"
	}
	return name
}

func tail(out string) string {
	const most = 2000
	if len(out) > most {
		out = "…" + out[len(out)-most:]
	}
	return strings.ToValidUTF8(out, "")
}
