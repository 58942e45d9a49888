// Package systematic measures how many small changes of the library the tests notice.
// It changes every condition, bound, statement, error and constant of the protocol's
// files, one at a time. Package mutant has the changes that people thought of.
//
// All mutants are compiled into one set of test binaries (Untch, Offutt and Harrold,
// "Mutation analysis using mutant schemata", 1993), and an environment variable chooses
// one. So a mutant costs only the run of the tests that reach its code.
package systematic

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/mutant"
	"github.com/percolator-bigtable/percolator/emulator_test/internal/systematic/mutation"
)

// A Suite says which code has mutants, and which tests have to notice them.
type Suite struct {
	// Root of the module.
	Root string
	// Packages have mutants, Tests have tests. Both are like "./txn".
	Packages, Tests []string
	// Files limits the mutants to files whose names in the module match one of these
	// patterns (path.Match), or are in one of these folders. Empty means all.
	Files []string
	// Short runs the tests with -short.
	Short bool
	// Parallel is how many test processes run at once.
	Parallel int
	// Slack is processor time, and idle time, that a process with a mutant may use
	// besides a multiple of what the tests used without one.
	Slack time.Duration
	// Cache is a folder for measurements of tests, or nothing.
	Cache string
	// Log gets progress. It may be nil.
	Log io.Writer
}

// Protocol is the suite of the module at root.
func Protocol(root string) Suite {
	return Suite{
		Root: root,
		Packages: []string{"./txn", "./txn/format", "./txn/internal/gctime", "./txn/internal/store", "./txn/internal/recovery", "./txn/internal/latch", "./txn/internal/buffer", "./txn/internal/changed", "./txn/internal/journal", "./txn/internal/settled",
			"./txn/gc", "./txn/changes", "./notify", "./tso", "./tso/format", "./tso/internal/row", "./tso/internal/wire", "./tso/server"},
		Tests: []string{"./txn/format", "./txn/internal/store", "./txn/internal/recovery", "./txn/internal/latch", "./txn/internal/buffer", "./txn/internal/changed", "./txn/internal/journal", "./txn/internal/settled", "./txn/gc", "./txn/changes", "./txn", "./txn/admin", "./txn/admin/doctor",
			"./txn/jobs", "./txn/idempotency", "./txn/index", "./notify", "./tso", "./tso/internal/row", "./tso/server", "./emulator_test", "./cmd/percctl"},
		Parallel: 1,
		Slack:    8 * time.Second,
	}
}

// about are files about telemetry and documentation, which have no mutants.
var about = regexp.MustCompile(`(^|/)(doc|telemetry|instrument|\w*metrics|\w*trace|export_test)\.go$|\.pb\.go$|_grpc\.go$`)

// Find returns all mutants of the packages.
func (s Suite) Find() ([]Mutant, error) {
	mutants, _, err := s.find()
	return mutants, err
}

func (s Suite) find() ([]Mutant, []*source, error) {
	return find(s.Root, func(name string) bool { return !about.MatchString(name) }, s.Packages...)
}

// Selected reports whether Files names the mutant's file.
func (s Suite) Selected(m Mutant) bool {
	return len(s.Files) == 0 || slices.ContainsFunc(s.Files, func(pattern string) bool {
		ok, err := path.Match(pattern, m.File)
		return err == nil && ok || path.Dir(m.File) == strings.TrimSuffix(pattern, "/")
	})
}

func (s Suite) logf(format string, args ...any) {
	if s.Log != nil {
		fmt.Fprintf(s.Log, format+"\n", args...)
	}
}

// A unit is what runs on its own: a test, or one subtest of a test that takes long.
type unit struct {
	Package string        `json:"package"`
	Test    string        `json:"test"`
	Sub     string        `json:"sub,omitempty"`
	CPU     time.Duration `json:"cpu"`
	Wall    time.Duration `json:"wall"`
	Reached []int         `json:"reached"`
}

func (u unit) String() string {
	name := strings.TrimPrefix(u.Package, "./") + " " + u.Test
	if u.Sub != "" {
		name += "/" + u.Sub
	}
	return name
}

// binaries are the test binaries with all mutants.
type binaries struct {
	Suite
	mutants []Mutant
	paths   map[string]string // by package
}

// build compiles the tests of all packages with all mutants in them.
func (s Suite) build(ctx context.Context, dir string) (*binaries, error) {
	mutants, sources, err := s.find()
	if err != nil {
		return nil, err
	}
	gomod, err := os.ReadFile(filepath.Join(s.Root, "go.mod"))
	if err != nil {
		return nil, err
	}
	module := moduleLine.FindSubmatch(gomod)
	if module == nil {
		return nil, fmt.Errorf("%s has no go.mod with a module line", s.Root)
	}
	const home = "internal/mutation" // in the overlay only
	changed := map[string]string{}
	for _, name := range []string{"mutation.go", "mapped_unix.go", "mapped_other.go"} {
		text, err := mutation.Source.ReadFile(name)
		if err != nil {
			return nil, err
		}
		changed[filepath.Join(s.Root, filepath.FromSlash(home), name)] = string(text)
	}
	for _, src := range sources {
		changed[src.path] = src.mutated(string(module[1]) + "/" + home)
	}
	overlay, err := mutant.WriteOverlay(dir, changed)
	if err != nil {
		return nil, err
	}
	b := &binaries{Suite: s, mutants: mutants, paths: map[string]string{}}
	for i, pkg := range s.Tests {
		b.paths[pkg] = filepath.Join(dir, fmt.Sprintf("test%d", i))
		s.logf("building the tests of %s with %d mutants", pkg, len(mutants))
		if err := mutant.BuildTests(ctx, s.Root, overlay, b.paths[pkg], pkg); err != nil {
			return nil, err
		}
	}
	return b, nil
}

var moduleLine = regexp.MustCompile(`(?m)^module (\S+)$`)

// test runs tests of one package with mutant n, or with none if n is negative.
func (b *binaries) test(ctx context.Context, pkg, tests string, n int, l limit) (outcome, error) {
	return run(ctx, b.paths[pkg], filepath.Join(b.Root, filepath.FromSlash(pkg)),
		[]string{fmt.Sprintf("%s=%d", mutation.Active, n), "GOMAXPROCS=1"},
		append(b.flags(tests), "-test.failfast"), l)
}

func (b *binaries) flags(tests string) []string {
	return []string{"-test.run=" + tests, "-test.count=1", "-test.timeout=" + longest.String(), fmt.Sprintf("-test.short=%t", b.Short)}
}

// most is what a test without a mutant may take.
var most = limit{cpu: 5 * time.Minute, idle: 5 * time.Minute}

// split is the CPU time from which subtests are units of their own.
const split = 400 * time.Millisecond

// measure runs each test once without a mutant, and returns what it costs and which
// mutants' code it runs. It leaves out tests that fail.
func (b *binaries) measure(ctx context.Context) ([]unit, error) {
	var all []unit
	for _, pkg := range b.Tests {
		units, err := b.cached(pkg, func() ([]unit, error) { return b.measurePackage(ctx, pkg) })
		if err != nil {
			return nil, err
		}
		all = append(all, units...)
	}
	return all, nil
}

// cached returns measurements of the same binary, if there are any.
func (b *binaries) cached(pkg string, measure func() ([]unit, error)) ([]unit, error) {
	if b.Cache == "" {
		return measure()
	}
	binary, err := os.ReadFile(b.paths[pkg])
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(binary)
	file := filepath.Join(b.Cache, fmt.Sprintf("%s-%t.json", hex.EncodeToString(sum[:16]), b.Short))
	var units []unit
	if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &units) == nil {
		return units, nil
	}
	units, err = measure()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(units)
	if err == nil {
		err = errors.Join(os.MkdirAll(b.Cache, 0o700), os.WriteFile(file, text, 0o600))
	}
	return units, err
}

func (b *binaries) measurePackage(ctx context.Context, pkg string) ([]unit, error) {
	list, err := run(ctx, b.paths[pkg], b.Root, nil, []string{"-test.list=^Test|^Fuzz|^Example"}, most)
	if err != nil || list.failed {
		return nil, fmt.Errorf("listing tests of %s: %w %s", pkg, err, list.out)
	}
	tests := strings.Fields(list.out)
	began := time.Now()
	b.logf("measuring %d tests of %s", len(tests), pkg)
	defer func() { b.logf("measured in %v", time.Since(began).Round(time.Second)) }()
	var mu sync.Mutex
	var units []unit
	err = each(ctx, b.Parallel, tests, func(ctx context.Context, test string) error {
		found, err := b.measureTest(ctx, pkg, test)
		mu.Lock()
		defer mu.Unlock()
		units = append(units, found...)
		return err
	})
	slices.SortFunc(units, func(a, b unit) int { return cmp.Compare(a.String(), b.String()) })
	return units, err
}

// measureTest returns the unit of a test, or those of its subtests.
func (b *binaries) measureTest(ctx context.Context, pkg, test string) ([]unit, error) {
	whole, subs, err := b.measureUnit(ctx, unit{Package: pkg, Test: test}, most)
	if err != nil || whole == nil {
		return nil, err
	}
	if whole.CPU < split || len(subs) < 2 {
		return []unit{*whole}, nil
	}
	var units []unit
	for _, sub := range subs {
		// Some tests do not end without all their subtests.
		l := limit{cpu: 2*whole.CPU + time.Second, idle: 2*whole.Wall + time.Second}
		u, _, err := b.measureUnit(ctx, unit{Package: pkg, Test: test, Sub: sub}, l)
		if err != nil {
			return nil, err
		}
		if u == nil { // it needs the others
			return []unit{*whole}, nil
		}
		units = append(units, *u)
	}
	return units, nil
}

var runLine = regexp.MustCompile(`(?m)^=== RUN +[^/\s]+/([^/\s]+)$`)

// measureUnit returns nil if the unit fails twice, or hangs.
func (b *binaries) measureUnit(ctx context.Context, u unit, l limit) (*unit, []string, error) {
	f, err := os.CreateTemp("", "reached")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Truncate(int64(max(1, len(b.mutants)))); err != nil {
		return nil, nil, err
	}
	var o outcome
	for try := 0; ; try++ {
		o, err = run(ctx, b.paths[u.Package], filepath.Join(b.Root, filepath.FromSlash(u.Package)),
			[]string{mutation.Reached + "=" + f.Name(), "GOMAXPROCS=1"},
			append(b.flags(pattern(u)), "-test.v"), l)
		if err != nil {
			return nil, nil, err
		}
		if !o.failed {
			break
		}
		if u.Sub != "" && (try == 1 || o.hung != "") {
			return nil, nil, nil
		}
		if try == 1 {
			b.logf("%v is left out: it fails without a mutant: %s", u, cmp.Or(o.hung, mutant.FailedTest(o.out)))
			return nil, nil, nil
		}
	}
	u.CPU, u.Wall = o.cpu, o.wall
	reached, err := os.ReadFile(f.Name())
	if err != nil {
		return nil, nil, err
	}
	for i, on := range reached {
		if on != 0 {
			u.Reached = append(u.Reached, i)
		}
	}
	var subs []string
	for _, m := range runLine.FindAllStringSubmatch(o.out, -1) {
		if !slices.Contains(subs, m[1]) {
			subs = append(subs, m[1])
		}
	}
	return &u, subs, nil
}

// pattern is the value of -test.run for units of one test, or for tests.
func pattern(units ...unit) string {
	var tests, subs []string
	for _, u := range units {
		tests = append(tests, regexp.QuoteMeta(u.Test))
		subs = append(subs, regexp.QuoteMeta(u.Sub))
	}
	if units[0].Sub != "" {
		return "^" + tests[0] + "$/^(" + strings.Join(subs, "|") + ")$"
	}
	return "^(" + strings.Join(tests, "|") + ")$"
}

// each calls f for all items, at most parallel at once, until one fails.
func each[T any](ctx context.Context, parallel int, items []T, f func(context.Context, T) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan T)
	var workers sync.WaitGroup
	for range max(1, parallel) {
		workers.Go(func() {
			for item := range work {
				if err := f(ctx, item); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, item := range items {
		select {
		case work <- item:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	workers.Wait()
	return context.Cause(ctx)
}
