package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/percolator-bigtable/percolator/emulator_test/clitest"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// shortenVariable makes percctl, as this test's binary, use shorter durations of
// garbage collection: nobody wants to wait two minutes.
const shortenVariable = "PERCCTL_TEST_SHORTEN_GC"

func shortenGC() {
	if n, err := strconv.Atoi(os.Getenv(shortenVariable)); err == nil {
		txntest.ShortenGC(n)
	}
}

// newGCFixture leaves what is garbage, and the locks of one committed
// transaction; the fixture of the other scripts has locks that do not expire.
func newGCFixture(t *testing.T) *fixture {
	ctx := context.Background()
	f, err := newFixture(ctx, t)
	if err == nil {
		err = f.commits(ctx)
	}
	if err == nil {
		err = f.leave(ctx, "FORWARD", txntest.StepSecondaries, txn.Config{LockTTL: shortTTL}, "accounts/bob/bal:usd", "accounts/joe/bal:usd", "journal/2/entry:text")
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) environment() []string {
	return []string{
		"BIGTABLE_EMULATOR_HOST=" + f.emulator.Addr(),
		"PERCCTL_PROJECT=" + fixtureProject,
		"PERCCTL_INSTANCE=" + fixtureInstance,
	}
}

// TestGC runs the scripts of testdata/gc, each against an emulator of its own.
func TestGC(t *testing.T) {
	t.Parallel()
	clitest.Run(t, testscript.Params{
		Files:               clitest.Scripts(t, "testdata/gc"),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			f := newGCFixture(t)
			env.Values["fixture"] = f
			env.Vars = append(env.Vars, f.environment()...)
			env.Setenv(shortenVariable, "50")
			env.Defer(func() {
				if err := f.check(context.Background()); err != nil {
					t.Errorf("%s: %v", env.WorkDir, err)
				}
				f.close()
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits,
			"dump":  dumpTo,
			"stuck": stuck,
		},
	})
}

// stuck leaves a transaction that nobody may end.
func stuck(ts *testscript.TestScript, _ bool, _ []string) {
	f := ts.Value("fixture").(*fixture)
	ts.Check(f.leave(context.Background(), "ALIVE", txntest.StepCommit, txn.Config{LockTTL: longTTL, TokenTTL: -1}, "accounts/eve/bal:usd"))
}

// interruptGC runs percctl until it writes a line, interrupts it, and returns
// what it printed.
func interruptGC(t *testing.T, f *fixture, until string, env []string, args ...string) (stdout, stderr string, exitCode int) {
	t.Helper()
	cmd := exec.Command("percctl", args...)
	cmd.Env = append(append(os.Environ(), f.environment()...), env...)
	var out strings.Builder
	cmd.Stdout = &out
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer guard.Stop()
	var text strings.Builder
	sent := false
	for lines := bufio.NewReader(pipe); ; {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		if !sent && strings.Contains(line, until) {
			sent = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !sent {
		t.Errorf("it never said %q", until)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), text.String(), cmd.ProcessState.ExitCode()
}
