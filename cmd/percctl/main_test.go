package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes percctl a command that scripts and tests can run; it is this
// test's binary.
func TestMain(m *testing.M) {
	shortenGC()
	testscript.Main(m, map[string]func(){"percctl": main})
}

// scripts are those of a folder; with -short a third of them, another one each day:
// under the race detector every command takes long to start.
func scripts(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(all) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	if !testing.Short() {
		return all
	}
	var chosen []string
	const day = 24 * 60 * 60
	parts := min(3, len(all))
	for i := int(time.Now().Unix()/day) % parts; i < len(all); i += parts {
		chosen = append(chosen, all[i])
	}
	return chosen
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Files:               scripts(t, "testdata/script"),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("BIGTABLE_EMULATOR_HOST", os.Getenv("BIGTABLE_EMULATOR_HOST"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits CODE COMMAND… runs a command and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG…]")
	}
	if want, got := run(ts, args); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// until CODE COMMAND… runs a command again and again, until it exits with CODE.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until CODE COMMAND [ARG…]")
	}
	end := time.Now().Add(time.Minute)
	for {
		want, got := run(ts, args)
		if got == want {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("exit code %d after a minute, want %d", got, want)
		}
	}
}

// run returns the exit code that args begin with, and that of the command.
func run(ts *testscript.TestScript, args []string) (want, got int) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	return want, got
}
