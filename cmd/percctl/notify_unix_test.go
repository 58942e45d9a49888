//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"sync"
	"syscall"
	"testing"

	"cloud.google.com/go/bigtable"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
)

// streamGate lets streaming requests that it is armed for through until one is
// held: that one waits until its caller is gone.
type streamGate struct {
	mu      sync.Mutex
	matches func(req any) bool
	pass    int
	held    chan struct{}
}

func (g *streamGate) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, &gatedStream{ss, g})
}

type gatedStream struct {
	grpc.ServerStream
	gate *streamGate
}

func (s *gatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil || !s.gate.hold(m) {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (g *streamGate) hold(req any) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil || !g.matches(req) {
		return false
	}
	if g.pass--; g.pass == -1 {
		close(g.held)
	}
	return g.pass < 0
}

func (g *streamGate) arm(pass int, what func(req any) bool) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.matches, g.pass, g.held = what, pass, make(chan struct{})
	return g.held
}

func (g *streamGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = nil
}

// bulkTo matches MutateRows of a table whose first row begins with prefix.
func bulkTo(table, prefix string) func(any) bool {
	return func(req any) bool {
		r, ok := req.(*btpb.MutateRowsRequest)
		return ok && path.Base(r.TableName) == table && bytes.HasPrefix(r.Entries[0].RowKey, []byte(prefix))
	}
}

// gatedFixture is a fixture of observers behind a gate.
func gatedFixture(t *testing.T) (*fixture, *streamGate) {
	t.Helper()
	g := &streamGate{}
	f, err := newFixture(t.Context(), t, grpc.StreamInterceptor(g.intercept))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.open()
		if err := f.check(context.Background()); err != nil {
			t.Error(err)
		}
		f.close()
	})
	if err := f.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f, g
}

func (f *fixture) percctl(args ...string) *exec.Cmd {
	cmd := exec.Command("percctl", args...)
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
	return cmd
}

// interrupt runs percctl until a request is held, and interrupts it.
func (f *fixture) interrupt(t *testing.T, held <-chan struct{}, args ...string) (stdout, stderr []byte) {
	t.Helper()
	cmd := f.percctl(args...)
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-held:
	case err := <-ended:
		t.Fatalf("it ended before it was interrupted: %v: %s", err, text.String())
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := <-ended; !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Fatalf("%v, want exit code 130; %s", err, text.String())
	}
	return out.Bytes(), text.Bytes()
}

// run runs percctl to its end and reads its JSON.
func (f *fixture) run(t *testing.T, into any, args ...string) {
	t.Helper()
	cmd := f.percctl(args...)
	var text bytes.Buffer
	cmd.Stderr = &text
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
}

// TestReplayInterrupted: Ctrl-C in the middle of percctl notify replay ends it
// with an account of what was done, and running it again does the rest.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	f, g := gatedFixture(t)
	type report struct{ Done, Failed, Unfinished int }
	// Of two letters the first is replayed and removed; the removal of the
	// second never arrives.
	held := g.arm(1, bulkTo("percolator", "dead/"))
	stdout, stderr := f.interrupt(t, held, "notify", "replay", "--all", "--yes", "-o", "json")
	var first, second report
	if err := json.Unmarshal(stdout, &first); err != nil || first != (report{Done: 1, Unfinished: 1}) {
		t.Errorf("the interrupted run reports %+v, %v: %s", first, err, stdout)
	}
	if !bytes.Contains(stderr, []byte("interrupted: 1 dead letter not reached; run the command again to continue\"")) {
		t.Errorf("it ended with other words:\n%s", stderr)
	}
	g.open()
	f.run(t, &second, "notify", "replay", "--all", "--yes", "-o", "json")
	if second != (report{Done: 1}) {
		t.Errorf("the second run reports %+v", second)
	}
	var left []any
	f.run(t, &left, "notify", "list", "--dead", "-o", "json")
	if len(left) > 0 {
		t.Errorf("dead letters are left: %v", left)
	}
}

// TestBackfillInterrupted: the message says from where to continue, and continuing from
// there notifies the rest.
func TestBackfillInterrupted(t *testing.T) {
	t.Parallel()
	f, g := gatedFixture(t)
	const rows = 700 // a request notifies 500
	var keys []string
	var muts []*bigtable.Mutation
	for i := range rows {
		m := bigtable.NewMutation()
		m.Set("contents", "raw", bigtable.Now(), []byte("old"))
		keys, muts = append(keys, fmt.Sprintf("old%05d", i)), append(muts, m)
	}
	if errs, err := f.bt.Open("documents").ApplyBulk(t.Context(), keys, muts); err != nil || errs != nil {
		t.Fatal(err, errs)
	}
	type report struct {
		Cells int
		Last  string `json:"last_row"`
	}
	held := g.arm(1, bulkTo("documents", "old"))
	stdout, stderr := f.interrupt(t, held, "notify", "backfill", "documents/contents:raw", "--prefix", "old", "--yes", "-o", "json")
	var first, second report
	if err := json.Unmarshal(stdout, &first); err != nil || first != (report{500, "old00499"}) {
		t.Errorf("the interrupted run reports %+v, %v: %s", first, err, stdout)
	}
	if !bytes.Contains(stderr, []byte("interrupted after 500 cells; to continue, run the command again with --start old00499 --end ole\"")) {
		t.Errorf("it ended with other words:\n%s", stderr)
	}
	g.open()
	f.run(t, &second, "notify", "backfill", "documents/contents:raw", "--start", "old00499", "--end", "ole", "--yes", "-o", "json")
	if second.Cells != 201 {
		t.Errorf("the second run reports %+v", second)
	}
	var listed []any
	f.run(t, &listed, "notify", "list", "documents", "--prefix", "old", "-o", "json")
	if len(listed) != rows {
		t.Errorf("%d cells are notified, want %d", len(listed), rows)
	}
}

// TestListInterrupted: what was printed by then is well-formed.
func TestListInterrupted(t *testing.T) {
	t.Parallel()
	f, g := gatedFixture(t)
	held := g.arm(0, func(req any) bool {
		r, ok := req.(*btpb.ReadRowsRequest)
		return ok && len(r.GetRows().GetRowRanges()) > 0 && bytes.HasPrefix(r.Rows.RowRanges[0].GetStartKeyClosed(), []byte("dead/"))
	})
	stdout, stderr := f.interrupt(t, held, "notify", "list", "-o", "json")
	var listed []any
	if err := json.Unmarshal(stdout, &listed); err != nil || len(listed) != 6 {
		t.Errorf("%d items, %v: %s", len(listed), err, stdout)
	}
	if !bytes.Contains(stderr, []byte("stopped after 6 notifications and 0 dead letters: ")) {
		t.Errorf("it ended with other words:\n%s", stderr)
	}
}
