//go:build unix

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestTopInterrupted: frames that were asked for and did not come are no
// success; those that came are whole.
func TestTopInterrupted(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	out, errs := watch("\n"), watch("\n")
	cmd := exec.Command("percctl", "top", "--count", "100000", "--interval", "1m", "-o", "jsonl")
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	out.await(t)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.HasPrefix(errs.String(), `{"command":"percctl top","error":"interrupted after 1 frame","exit_code":130}`) || !strings.HasSuffix(out.String(), "}\n") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
