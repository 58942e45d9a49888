//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"
)

// follow starts a percctl that runs until it is interrupted, and returns its lines. ended
// interrupts it, and wants exit code 130 and words for people.
func follow(t *testing.T, f *fixture, args ...string) (lines <-chan string, ended func()) {
	t.Helper()
	cmd := f.percctl(args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	all := make(chan string)
	go func() {
		defer close(all)
		for s := bufio.NewScanner(out); s.Scan(); {
			all <- s.Text()
		}
	}()
	return all, func() {
		t.Helper()
		defer guard.Stop()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		for range all {
		}
		_ = cmd.Wait() // its error is the exit code
		if code, text := cmd.ProcessState.ExitCode(), errs.String(); code != 130 || !strings.Contains(text, "interrupted") || strings.Contains(text, "rpc error") || strings.Contains(text, "context canceled") {
			t.Errorf("percctl %s: exit code %d: %s", strings.Join(args, " "), code, text)
		}
	}
}

// await reads lines until one has all the words.
func await(t *testing.T, lines <-chan string, words ...string) string {
	t.Helper()
	for line := range lines {
		missing := false
		for _, w := range words {
			missing = missing || !strings.Contains(line, w)
		}
		if !missing {
			return line
		}
	}
	t.Fatalf("it ended without a line with %q", words)
	return ""
}

// change runs a command that changes something to its end.
func (f *fixture) change(t *testing.T, args ...string) {
	t.Helper()
	cmd := f.percctl(args...)
	if out, err := cmd.CombinedOutput(); err != nil && cmd.ProcessState.ExitCode() != 4 {
		t.Fatalf("percctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// TestLockWatch: lock watch prints locks when they appear and when they are gone.
func TestLockWatch(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines, ended := follow(t, f, "lock", "watch", "--all", "--interval", "100ms", "-o", "json")
	text, endText := follow(t, f, "lock", "watch", "accounts", "--interval", "100ms")
	await(t, lines, `"event":"appeared"`, "accounts/bob/bal:usd", "roll forward")
	await(t, text, "appeared", "accounts/bob/bal:usd", "safe to roll forward")
	f.change(t, "lock", "resolve", "--all", "--yes")
	gone := await(t, lines, `"event":"gone"`, "accounts/bob/bal:usd")
	var c struct {
		Transaction struct {
			State string `json:"state"`
			Locks []any  `json:"locks"`
		} `json:"transaction"`
	}
	if err := json.Unmarshal([]byte(gone), &c); err != nil || c.Transaction.State != "committed" || len(c.Transaction.Locks) != 0 {
		t.Errorf("%v: %s", err, gone)
	}
	await(t, text, "gone", "accounts/bob/bal:usd", "committed at")
	ended()
	endText()
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHistoryFollow: history --follow prints what a row has, and then what happens to it.
func TestHistoryFollow(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines, ended := follow(t, f, "history", "accounts", "joe", "--follow", "--interval", "100ms", "-o", "json")
	empty, endEmpty := follow(t, f, "history", "accounts", "nobody", "-f", "--interval", "100ms")
	await(t, lines, `"kind":"lock"`, `"cell":"accounts/joe/bal:usd"`)
	f.change(t, "lock", "resolve", "--all", "--yes")
	await(t, lines, `"gone":true`, `"cell":"accounts/joe/bal:usd"`)
	f.change(t, "set", "accounts/joe/info:x", "next", "--yes")
	await(t, lines, `"kind":"write"`, `"cell":"accounts/joe/info:x"`)
	f.change(t, "set", "accounts/nobody/info:x", "first", "--yes")
	await(t, empty, "info:x", "value first put by the transaction")
	ended()
	endEmpty()
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
