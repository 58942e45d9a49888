//go:build unix

package main

import (
	"bufio"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestBenchInterrupted: an interrupt in the middle of a measurement ends its
// processes too.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("percctl", "bench", "observers", "latency", "--rows", "100", "--duration", "1h")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, write := io.Pipe()
	cmd.Stderr = write
	lines := bufio.NewReader(held)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); _ = write.Close() }()
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "measuring: 100 rows") {
		t.Fatalf("it said %q, %v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v, want exit code 130", err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		t.Errorf("processes are left: %v", err)
	}
}
