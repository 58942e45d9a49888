//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// gate lets requests of a step through until one is held: that one waits until
// its caller is gone.
type gate struct {
	mu   sync.Mutex
	step txntest.Step
	pass int
	held chan struct{}
}

func (g *gate) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	msg, ok := req.(proto.Message)
	if ok && g.hold(txntest.Classify(info.FullMethod, msg).Step) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return next(ctx, req)
}

func (g *gate) hold(step txntest.Step) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil || step != g.step {
		return false
	}
	if g.pass--; g.pass == -1 {
		close(g.held)
	}
	return g.pass < 0
}

func (g *gate) arm(step txntest.Step, pass int) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step, g.pass, g.held = step, pass, make(chan struct{})
	return g.held
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = nil
}

// TestResolveInterrupted: Ctrl-C in the middle of percctl lock resolve ends it
// with an account of what was done, and running it again does the rest.
func TestResolveInterrupted(t *testing.T) {
	t.Parallel()
	g := &gate{}
	f, err := newFixture(t.Context(), t, grpc.UnaryInterceptor(g.intercept))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if err := f.fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	resolve := func() *exec.Cmd {
		cmd := exec.Command("percctl", "lock", "resolve", "--all", "--yes", "-o", "json")
		cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
		return cmd
	}
	type report struct {
		Locks, Failed int
		Forward       int `json:"rolled_forward"`
		Back          int `json:"rolled_back"`
		LeftAlive     int `json:"left_alive"`
		Unfinished    int
	}
	read := func(out []byte) (r report) {
		t.Helper()
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return r
	}

	// One of two locks is rolled forward; the request for the other never arrives.
	held := g.arm(txntest.StepRollForward, 1)
	cmd := resolve()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-held
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Fatalf("%v, want exit code 130; %s", err, stderr.String())
	}
	if !bytes.Contains(stderr.Bytes(), []byte("not resolved; run the command again to continue\"")) {
		t.Errorf("it ended with other words:\n%s", stderr.String())
	}
	first := read(stdout.Bytes())
	if first.Forward != 1 || first.Unfinished < 1 || first.Failed != 0 {
		t.Errorf("the interrupted run reports %+v", first)
	}

	g.open()
	out, err := resolve().Output()
	if !errors.As(err, &exit) || exit.ExitCode() != 4 {
		t.Fatalf("%v, want exit code 4; %s", err, out)
	}
	second := read(out)
	// A request that was cut off may have been applied all the same: then it was
	// counted as unfinished, and was not there any more.
	if first.Forward+second.Forward != 2 || first.Back+second.Back > 4 || second.Locks > first.Unfinished+3 {
		t.Errorf("first %+v, then %+v", first, second)
	}
	if second.LeftAlive != 3 || second.Unfinished != 0 {
		t.Errorf("the second run reports %+v", second)
	}
	if err := f.check(t.Context()); err != nil {
		t.Error(err)
	}
}
