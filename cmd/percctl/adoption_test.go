package main

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"

	"github.com/google/go-cmp/cmp"
)

// What differs from run to run: timestamps, RFC 3339 times, and durations.
var volatile = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`\b1\d{15}\b`), "1795152600000000"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z`), "2026-11-20T05:30:00.000000Z"},
	{regexp.MustCompile(`is [-+]?[\d.]+ m?s from this machine's clock, a round trip took [\d.]+ m?s`), "is +0 ms from this machine's clock, a round trip took 1 ms"},
	{regexp.MustCompile(`of \d+ tablets?:`), "of 2 tablets:"},
}

// progress is what commands say on standard error when they take long.
var progress = regexp.MustCompile(`(?m)^(looking (at|through) table .*|reading table .*|\d+ of \d+ checks done.*)\n`)

// TestAdoptionDoc runs docs/adoption.md: the commands of its console blocks, in
// order, against an emulator with the table that it is about, and compares what
// they print. A line # raw write CELL VALUE does what the text says next to it.
func TestAdoptionDoc(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	makeUsers(t, f)
	text, err := os.ReadFile(docs + "adoption.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	inBlock, ran := false, 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "```console":
			inBlock = true
		case strings.HasPrefix(line, "```"):
			inBlock = false
		case inBlock && strings.HasPrefix(line, "$ percctl "):
			ran++
			out = append(out, line)
			out = append(out, runDocumented(t, f, strings.TrimPrefix(line, "$ percctl "))...)
			continue
		case inBlock && strings.HasPrefix(line, "# raw write "):
			rawWrite(t, f, strings.Fields(line)[3:])
		case inBlock:
			continue // output, which was just run
		}
		out = append(out, line)
	}
	if ran < 8 {
		t.Errorf("only %d commands in docs/adoption.md", ran)
	}
	got := strings.Join(out, "\n") + "\n"
	if *update {
		if err := os.WriteFile(docs+"adoption.md", []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if got != string(text) {
		t.Errorf("docs/adoption.md is out of date: go test ./cmd/percctl -run TestAdoptionDoc -update writes it again\n%s", cmp.Diff(string(text), got))
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}

// makeUsers is the table that a service has made and filled, long ago.
func makeUsers(t *testing.T, f *fixture) {
	t.Helper()
	ctx := t.Context()
	for _, table := range []string{"accounts", "journal"} { // they are of no use here
		if err := f.admin.DeleteTable(ctx, table); err != nil {
			t.Fatal(err)
		}
		m := bigtable.NewMutation()
		m.DeleteRow()
		if err := f.bt.Open("percolator").Apply(ctx, "schema/"+table, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.admin.CreateTable(ctx, "users"); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"profile", "visits"} {
		if err := f.admin.CreateColumnFamily(ctx, "users", family); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.admin.SetGCPolicy(ctx, "users", "visits", bigtable.MaxVersionsPolicy(10)); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"ann", "bob", "joe"} {
		rawWrite(t, f, []string{"users/" + user + "/profile:name", strings.ToUpper(user[:1]) + user[1:]})
		rawWrite(t, f, []string{"users/" + user + "/visits:last", "home"})
	}
}

func rawWrite(t *testing.T, f *fixture, args []string) {
	t.Helper()
	table, rest, _ := strings.Cut(args[0], "/")
	row, column, _ := strings.Cut(rest, "/")
	family, qualifier, _ := strings.Cut(column, ":")
	m := bigtable.NewMutation()
	m.Set(family, qualifier, bigtable.Now(), []byte(args[1]))
	if err := f.bt.Open(table).Apply(t.Context(), row, m); err != nil {
		t.Fatal(err)
	}
}

// runDocumented runs a command and returns what it prints on both streams,
// standard output first, and its exit status where that is not 0.
func runDocumented(t *testing.T, f *fixture, args string) []string {
	t.Helper()
	cmd := exec.Command("percctl", strings.Fields(args)...)
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	text := stdout.String() + progress.ReplaceAllString(stderr.String(), "")
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		text += "exit status " + string(rune('0'+exit.ExitCode())) + "\n"
	} else if err != nil {
		t.Fatal(err)
	}
	for _, v := range volatile {
		text = v.pattern.ReplaceAllString(text, v.as)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
