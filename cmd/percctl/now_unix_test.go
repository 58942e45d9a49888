//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// watched keeps what a process writes, and says when something appears in it.
type watched struct {
	want string
	seen chan struct{}

	mu   sync.Mutex
	text strings.Builder
	done bool
}

func watch(want string) *watched { return &watched{want: want, seen: make(chan struct{})} }

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if !w.done && strings.Contains(w.text.String(), w.want) {
		w.done = true
		close(w.seen)
	}
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// await fails the test when nothing appears in a minute.
func (w *watched) await(t *testing.T) {
	t.Helper()
	select {
	case <-w.seen:
	case <-time.After(time.Minute):
		t.Fatalf("%q does not appear in:\n%s", w.want, w)
	}
}

// TestNowAfterKill: percctl tso now follows the oracle's row from a server that
// was killed to the next one, while the row still names the dead one.
func TestNowAfterKill(t *testing.T) {
	t.Parallel()
	f, err := newFixture(t.Context(), t)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	env := append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
	percctl := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command("percctl", args...)
		cmd.Env = env
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("percctl %q: %v\n%s%s", args, err, stdout.String(), stderr.String())
		}
		return stdout.Bytes()
	}
	serve := func(name string) (server *exec.Cmd, out, logs *watched) {
		t.Helper()
		out, logs = watch("\n"), watch("leading")
		server = exec.Command("percctl", "tso", "serve", "--listen", "127.0.0.1:0", "--lease", "1500ms", "--name", name)
		server.Env, server.Stdout, server.Stderr = env, out, logs
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = server.Process.Kill()
			_ = server.Wait()
		})
		return server, out, logs
	}
	now := func(args ...string) tso.Timestamp {
		t.Helper()
		var r struct{ Timestamp tso.Timestamp }
		out := percctl(append([]string{"tso", "now", "-o", "json", "--timeout", "20s"}, args...)...)
		if err := json.Unmarshal(out, &r); err != nil || r.Timestamp == 0 {
			t.Fatalf("%v in %s", err, out)
		}
		return r.Timestamp
	}
	percctl("tso", "mode", "served", "--yes")
	first, firstOut, logs := serve("first")
	logs.await(t)
	_, secondOut, secondLogs := serve("second")
	secondOut.await(t)
	before := now()

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	var row struct{ Leader string }
	if err := json.Unmarshal(percctl("tso", "mode", "-o", "json"), &row); err != nil || row.Leader != "first" {
		t.Logf("the row names %q already, %v: this run shows less", row.Leader, err)
	}
	after := now()
	if after <= before {
		t.Errorf("%d after %d", after, before)
	}
	secondLogs.await(t)
	if last := now("--server", strings.TrimSpace(firstOut.String())+","+strings.TrimSpace(secondOut.String())); last <= after {
		t.Errorf("%d after %d", last, after)
	}
	if out := string(percctl("tso", "status")); !strings.Contains(out, "second  "+strings.TrimSpace(secondOut.String())+"  leading ") {
		t.Errorf("status:\n%s", out)
	}
}
