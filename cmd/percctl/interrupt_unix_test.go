//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var progressLine = regexp.MustCompile(`^(all \d+ documents are|\d+ of \d+ documents) loaded\b`)

// signalDemo starts a demo in a process group of its own, as a terminal would,
// sends a signal once workers are at work, and returns what it wrote to its
// standard error. It returns when the last process is gone: all of them hold
// the pipe.
func signalDemo(t *testing.T, send func(pid int) error) (stderr string, exitCode int) {
	t.Helper()
	// With many kills it takes longer than a second.
	cmd := exec.Command("percctl", "demo", "--dir", writeFiles(t, 300), "--workers", "3", "--kills", "100", "--seed", "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Whatever is left when the test fails.
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	guard := time.AfterFunc(time.Minute, func() {
		t.Error("processes are left after a minute")
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	defer guard.Stop()

	var text strings.Builder
	sent := false
	lines := bufio.NewReader(pipe)
	for {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		if !sent && progressLine.MatchString(line) {
			sent = true
			if err := send(cmd.Process.Pid); err != nil {
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
		t.Error("no progress was told")
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return text.String(), cmd.ProcessState.ExitCode()
}

// Ctrl-C reaches every process of the terminal.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	stderr, code := signalDemo(t, func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) })
	if code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	last := regexp.MustCompile(`percctl demo: interrupted: \d+ of 406 documents were loaded; all workers have ended\n$`)
	if !last.MatchString(stderr) {
		t.Errorf("it ended with other words:\n%s", stderr)
	}
}

// Workers do not outlive their coordinator.
func TestCoordinatorKilled(t *testing.T) {
	t.Parallel()
	_, code := signalDemo(t, func(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) })
	if code != -1 {
		t.Errorf("exit code %d, want death by signal", code)
	}
}
