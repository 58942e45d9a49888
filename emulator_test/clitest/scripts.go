// Package clitest tests command-line programs: in scripts, and by what documents
// say of them.
package clitest

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// Scripts are those of a folder; with -short a third of them, another one each day:
// under the race detector every command takes long to start.
func Scripts(t *testing.T, dir string) []string {
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

// Run runs scripts. Without -v it prints only the last part of what a script that fails printed:
// that is where the failure is. In scripts the condition [long] is [long.All]: a line
//
//	[!long] skip 'it waits for minutes'
//
// leaves a script out of plain go test, and [!long] stop what follows.
func Run(t *testing.T, p testscript.Params) {
	p.Deadline, _ = t.Deadline()
	known := p.Condition
	p.Condition = func(name string) (bool, error) {
		switch {
		case name == "long":
			return long.All(), nil
		case known != nil:
			return known(name)
		default:
			return false, fmt.Errorf("condition %q is not known", name)
		}
	}
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each command with the race detector sleeps for a second at its end
		if setup == nil {
			return nil
		}
		return setup(env)
	}
	testscript.RunT(runner{t}, p)
}

type runner struct{ *testing.T }

func (r runner) Run(name string, f func(testscript.T)) {
	r.T.Run(name, func(t *testing.T) { f(runner{t}) })
}

func (r runner) Verbose() bool { return testing.Verbose() }

func (r runner) Log(args ...any) {
	const most = 4000
	text := fmt.Sprint(args...)
	if cut := len(text) - most; cut > 0 && !testing.Verbose() {
		text = fmt.Sprintf("(the first %d bytes are left out; -v prints all)%s", cut, strings.ToValidUTF8(text[cut:], ""))
	}
	r.T.Log(text)
}

// Exits CODE COMMAND… runs a command and checks its exit code.
func Exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARG…]")
	}
	if want, got := run(ts, args); got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// Until CODE COMMAND… runs a command again and again, until it exits with CODE.
func Until(ts *testscript.TestScript, neg bool, args []string) {
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
