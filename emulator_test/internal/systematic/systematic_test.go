//go:build unix

package systematic_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/internal/systematic"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

const root = "../../.."

// toy is a suite over a module of its own, which needs no emulator.
func toy(t *testing.T) systematic.Suite {
	t.Helper()
	dir, err := filepath.Abs("testdata/toy")
	if err != nil {
		t.Fatal(err)
	}
	return systematic.Suite{Root: dir, Packages: []string{"./toy"}, Tests: []string{"./toy"}, Parallel: 4, Slack: 2 * time.Second, Log: t.Output()}
}

func runToy(t *testing.T, s systematic.Suite, list systematic.List, o systematic.Options) map[string]systematic.Result {
	t.Helper()
	o.Limit = time.Minute
	results, err := s.Run(t.Context(), list, o)
	if err != nil {
		t.Fatal(err)
	}
	byKey := map[string]systematic.Result{}
	for _, r := range results {
		byKey[strings.TrimPrefix(r.Key(), "toy/toy.go ")] = r
	}
	return byKey
}

// TestVerdicts has mutants of every operator and with every verdict.
func TestVerdicts(t *testing.T) {
	long.Test(t, "mutants that hang, and a limit for the time of each")
	t.Parallel()
	const explained = "check: n == 0 → false"
	got := runToy(t, toy(t), systematic.List{"toy/toy.go " + explained: "nobody asks"}, systematic.Options{})
	for key, want := range map[string]systematic.Verdict{
		"Larger: a < b → true":              systematic.Killed,
		"Larger: a < b → false":             systematic.Killed,
		"Larger: a < b → <=":                systematic.Survived,
		"Checked: return check(n) → nil":    systematic.Survived,
		explained:                           systematic.Explained,
		"check: n == 0 → true":              systematic.Survived,
		"Count: i++ dropped":                systematic.Timeout, // it uses a processor
		"Count: i != n → false":             systematic.Killed,
		"Wait: c <- 1 dropped":              systematic.Timeout, // it waits
		"Wait: go func() {… dropped":        systematic.Timeout,
		"Wait: c <- 1: 1 → 1+1":             systematic.Killed,
		"unused: Larger(1, 2) + 1 → -":      systematic.Unreached,
		"unused: Larger(1, 2): 1 → 1+1":     systematic.Unreached,
		"unused: Larger(1, 2) + 1: 1 → 1+1": systematic.Unreached,
	} {
		r, ok := got[key]
		if r.Verdict != want {
			t.Errorf("%s (known: %t): %q, want %q: %+v", key, ok, r.Verdict, want, r)
		}
		if want == systematic.Killed && !strings.HasPrefix(r.Test, "toy Test") {
			t.Errorf("%s was killed by %q", key, r.Test)
		}
	}
}

const quiet = `package quiet

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// Quiet has few mutants: most of what it does is for the log, or saves time or memory.
func Quiet(log *slog.Logger, began time.Time, age, limit time.Duration, most, bytes int, list []int) ([]int, bool) {
	ctx := context.Background()
	if log.Enabled(ctx, slog.LevelDebug) && most > 1 {
		log.Debug("began")
	}
	if most == 7 {
		debug := log.With("most", most)
		debug.Info("seven")
	} else {
		log.Info("not seven")
	}
	if err := ctx.Err(); err != nil {
		log.Info("ended", "error", err)
	}
	DeleteTimestampRange("f", 0, most)
	Set("f", 0)
	list = slices.Grow(list, most)
	for _, n := range list {
		if n > most {
			most = n
		}
	}
	for bytes < 100 && most >= 1 {
		bytes++
	}
	return append(list, most), time.Since(began) > time.Minute || age < limit || age > time.Hour
}

// DeleteTimestampRange and Set round.
func DeleteTimestampRange(string, int, int) {}
func Set(string, int)                       {}
`

// TestLeftOut: what only reports, reserves memory, counts bytes, rounds or compares measured times has no
// mutants of that, but all others. No two mutants are the same.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module quiet\n\ngo 1.26\n", "quiet.go": quiet} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mutants, err := systematic.Suite{Root: dir, Packages: []string{"."}}.Find()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.Change)
	}
	want := []string{
		`DeleteTimestampRange("f", 0, most) dropped`,
		`Set("f", 0) dropped`,
		"for _, n := range list {… dropped",
		"n > most → true",
		"n > most → false",
		"time.Since(began) > time.Minute || age < limit || age > time.Hour → true",
		"time.Since(began) > time.Minute → false",
		"age < limit → false",
		"age > time.Hour → false",
		"age > time.Hour → >=",
		"bytes < 100 && most >= 1 → false",
		"bytes < 100 → true",
		"most >= 1 → true",
		"most >= 1 → >",
		"bytes++ dropped",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestFailuresWithoutMutant: a test that also fails without the mutant kills nothing. So
// a busy machine makes no mutant look killed.
func TestFailuresWithoutMutant(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fails")
	t.Setenv("TOY_FAILS", file)
	s := toy(t)
	s.Parallel = 1
	n := 0
	got := runToy(t, s, nil, systematic.Options{
		Only: regexp.MustCompile("Larger: a < b → true|Flaky"),
		Done: func(r systematic.Result) {
			if n++; n == 1 { // the tests are measured
				if err := os.WriteFile(file, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		},
	})
	if n < 3 {
		t.Fatalf("%d mutants ran", n)
	}
	for key, r := range got {
		if want := map[bool]systematic.Verdict{true: systematic.Killed, false: systematic.Survived}[strings.HasPrefix(key, "Larger")]; r.Verdict != want {
			t.Errorf("%s: %+v, want %q", key, r, want)
		}
	}
}

// TestSample: the seed chooses the mutants that run, and the rest is reported.
func TestSample(t *testing.T) {
	t.Parallel()
	o := systematic.Options{Sample: 3, Seed: 7, Only: regexp.MustCompile("Larger|Checked|unused")}
	ran := func() (keys []string) {
		for key, r := range runToy(t, toy(t), nil, o) {
			if r.Verdict != systematic.NotRun {
				keys = append(keys, key)
			}
		}
		return keys
	}
	first, second := ran(), ran()
	if len(first) != 3 || len(second) != 3 {
		t.Fatalf("%q and %q ran, want 3 of each", first, second)
	}
	for _, key := range first {
		if !strings.Contains(strings.Join(second, "\n"), key) {
			t.Errorf("%q ran only the first time", key)
		}
	}
}

// TestInterrupted: what ran before the interrupt is reported.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := toy(t)
	s.Parallel = 1
	results, err := s.Run(ctx, nil, systematic.Options{Limit: time.Minute, Done: func(systematic.Result) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	ran := 0
	for _, r := range results {
		if r.Verdict != systematic.NotRun {
			ran++
		}
	}
	if ran == 0 || ran == len(results) {
		t.Errorf("%d of %d mutants ran", ran, len(results))
	}
}

// TestMeasurementsAreKept: the second run measures nothing.
func TestMeasurementsAreKept(t *testing.T) {
	t.Parallel()
	s := toy(t)
	s.Cache = t.TempDir()
	for i := range 2 {
		var log strings.Builder
		s.Log = &log
		got := runToy(t, s, nil, systematic.Options{Only: regexp.MustCompile("Larger: a < b")})
		if len(got) != 3 || got["Larger: a < b → true"].Verdict != systematic.Killed {
			t.Errorf("%v", got)
		}
		if measured := strings.Contains(log.String(), "measuring"); measured != (i == 0) {
			t.Errorf("run %d: %s", i, log.String())
		}
	}
}

// TestExplained: each entry of the list is a mutant of today's code, and has a reason.
func TestExplained(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	list, err := systematic.ReadList(filepath.Join(dir, filepath.FromSlash(systematic.ExplainedFile)))
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := systematic.Protocol(dir).Find()
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < 5000 {
		t.Errorf("%d mutants", len(mutants))
	}
	if err := list.Check(mutants); err != nil {
		t.Error(err)
	}
}

func TestReadList(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "list")
	read := func(text string) (systematic.List, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return systematic.ReadList(path)
	}
	list, err := read("# comment\n\na.go f: x → y\na.go g: z\n\tone\n\ttwo\n\n\nb.go h: w\n\tthree\n")
	if err != nil || len(list) != 3 || list.Why("a.go g: z") != "one two" || list.Why("b.go h: w") != "three" || list.Why("c") != "" {
		t.Errorf("%v, %v", list, err)
	}
	if err := list.Check([]systematic.Mutant{{File: "a.go", Func: "f", Change: "x → y"}, {File: "a.go", Func: "g", Change: "z"}}); err == nil || !strings.Contains(err.Error(), "b.go h: w") {
		t.Errorf("a stale entry: %v", err)
	}
	for _, bad := range []string{"a\n", "a\n\twhy\nb\n\twhy\n", "a\n\twhy\n\na\n\twhy\n"} {
		if _, err := read(bad); err == nil {
			t.Errorf("%q was read, want an error", bad)
		}
	}
}
