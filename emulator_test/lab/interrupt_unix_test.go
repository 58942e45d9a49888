//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestBenchInterrupted: an interrupt during a measurement also ends its processes.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	for first, args := range map[string][]string{
		"measuring: 100 rows":          {"observers", "latency", "--rows", "100", "--duration", "1h"},
		"measuring: reads of one cell": {"compare", "--round", "1h", "--rows", "1000", "--served"},
		"measuring: 10 accounts":       {"contention", "--duration", "1h"},
	} {
		t.Run(args[0], func(t *testing.T) { t.Parallel(); testInterrupted(t, first, append([]string{"bench"}, args...)) })
	}
}

// TestSoakInterrupted: an interrupted soak still prints its summary.
func TestSoakInterrupted(t *testing.T) {
	t.Parallel()
	args := []string{"soak", "--workload", "bank", "--oracle", "direct", "--faults", "rpc", "--each", "200ms", "--parallel", "1", "--duration", "1h", "-o", "json"}
	out := testInterrupted(t, " ok ", args)
	var summary struct{ Histories, Transactions int }
	if err := json.Unmarshal(out, &summary); err != nil || summary.Histories == 0 || summary.Transactions == 0 {
		t.Errorf("%v, from %s", err, out)
	}
}

// testInterrupted interrupts a command when it has written first to standard error. It
// returns what the command has printed.
func testInterrupted(t *testing.T, first string, args []string) []byte {
	cmd := exec.Command("lab", args...)
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	held, write := io.Pipe()
	cmd.Stderr = write
	lines := bufio.NewReader(held)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); _ = write.Close() }()
	for line := ""; !strings.Contains(line, first); {
		var err error
		if line, err = lines.ReadString('\n'); err != nil {
			t.Fatalf("standard error never had %q: %v", first, err)
		}
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
	return out.Bytes()
}
