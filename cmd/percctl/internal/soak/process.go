package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
	"github.com/percolator-bigtable/percolator/emulator_test/history"
)

// A role is what a process of a soak is.
type role string

const (
	emulatorRole role = "emulator"
	oracleRole   role = "oracle"
	clientRole   role = "client"
	burnerRole   role = "burner"
)

// A spec tells a process what to do. It ends when its standard input does.
type spec struct {
	Role role
	// Listen is where an emulator or oracle listens.
	Listen string
	// Emulator, Project and Instance are where the tables are.
	Emulator, Project, Instance string
	// Oracles are the addresses of the served oracle; none: direct mode.
	Oracles []string
	Seed    uint64
	// Clock has the process's clock run wrong, up to an hour, and jump.
	Clock bool

	// Of a client:

	Workload string
	// Process is the history's process number of the first worker; the others
	// follow.
	Process, Stride, Workers int
	// Groups is how many groups the workers are in: only those of one group, each in
	// another process, want the same keys. Began is when the history did.
	Groups int
	Began  time.Time
	// Chaos is the share of requests that get a fault.
	Chaos float64
	// Net has connections fail.
	Net bool
}

// A message is one line from a process.
type message struct {
	// Ready is the first: the address that it listens on, or the client's token.
	Ready *string `json:",omitempty"`
	// Record of the history.
	Record *history.Record `json:",omitempty"`
	// Faults that the client has made, since the last message.
	Faults map[string]int `json:",omitempty"`
	// Settled: the client has settled a lock of this owner.
	Settled string `json:",omitempty"`
	// Timestamps and Observed count what the client was given, and the changes that
	// its observers have acknowledged, since the last message.
	Timestamps, Observed int64 `json:",omitempty"`
	// Batch is of a burner.
	Batch *batch `json:",omitempty"`
	// Problem is something that must not happen.
	Problem string `json:",omitempty"`
	At      time.Time
}

// newProcessCmd is the command that a soak starts its processes with.
func newProcessCmd(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "process SPEC",
		Short:  "A process of percctl soak",
		Hidden: true,
		Args:   cli.ExactArgs(1, "what it is to do"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var sp spec
			if err := json.Unmarshal([]byte(args[0]), &sp); err != nil {
				return cli.Usagef("%w", err)
			}
			// Ctrl-C goes to every process of the terminal; it is the parent's to
			// handle.
			signal.Ignore(os.Interrupt)
			signal.Reset(syscall.SIGTERM)
			return sp.run(cmd.Context(), s)
		},
	}
}

func (sp spec) run(ctx context.Context, s *cli.Streams) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, s.In)
		cancel() // the parent has nothing left, or is dead
	}()
	var mu sync.Mutex
	out := json.NewEncoder(s.Out)
	send := func(m message) {
		m.At = time.Now()
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(m) // fails when the parent is dead, which the input tells too
	}
	switch sp.Role {
	case emulatorRole:
		return sp.emulator(ctx, send)
	case oracleRole:
		return sp.oracle(ctx, send)
	case clientRole:
		return sp.client(ctx, send)
	case burnerRole:
		return sp.burn(ctx, send)
	}
	return fmt.Errorf("unknown role %q", sp.Role)
}

// A process is one that runs.
type process struct {
	spec   spec
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *bytes.Buffer
	ready  chan string   // receives what it said when it was ready
	ended  chan struct{} // closed when its output is read to the end

	mu      sync.Mutex
	owner   string // of a client: its worker token
	killed  bool
	stopped bool
}

// start starts this program again. Messages go to handle, one at a time.
func start(sp spec, handle func(*process, message)) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(sp)
	if err != nil {
		return nil, err
	}
	p := &process{spec: sp, stderr: &bytes.Buffer{}, ready: make(chan string, 1), ended: make(chan struct{})}
	p.cmd = exec.Command(self, "soak", "process", string(arg))
	p.cmd.Args[0] = os.Args[0]
	for _, e := range telemetry.NextChildEnv() {
		if !strings.HasPrefix(e, "BIGTABLE_EMULATOR_HOST=") {
			p.cmd.Env = append(p.cmd.Env, e)
		}
	}
	p.cmd.Stderr = p.stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		for in := bufio.NewReader(stdout); ; {
			line, err := in.ReadBytes('\n')
			if err != nil {
				return // half a line is of something that nobody was told of
			}
			var m message
			if err := json.Unmarshal(line, &m); err != nil {
				m = message{Problem: fmt.Sprintf("a process wrote %q: %v", line, err), At: time.Now()}
			}
			if m.Ready != nil {
				p.mu.Lock()
				p.owner = *m.Ready
				p.mu.Unlock()
				p.ready <- *m.Ready
				continue
			}
			handle(p, m)
		}
	}()
	return p, nil
}

// await returns what the process said when it was ready.
func (p *process) await(ctx context.Context) (string, error) {
	select {
	case s := <-p.ready:
		return s, nil
	case <-p.ended:
		return "", fmt.Errorf("%s process ended at once: %v\n%s", p.spec.Role, p.cmd.Wait(), p.stderr)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// kill ends the process with SIGKILL, and returns when all that it wrote is
// read.
func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.ended
	_ = p.cmd.Wait()
}

// finish asks the process to end; one that does not is killed, which is an
// error.
func (p *process) finish(patience time.Duration) error {
	p.resume()
	_ = p.stdin.Close()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s process %d did not end within %v", p.spec.Role, p.spec.Process, patience)
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s process %d: %w\n%s", p.spec.Role, p.spec.Process, err, p.stderr)
	}
	return nil
}

// suspend stops the process without ending it, until resume.
func (p *process) suspend() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.killed || suspend(p.cmd.Process) != nil {
		return false
	}
	p.stopped = true
	return true
}

func (p *process) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.stopped = false
		_ = resume(p.cmd.Process)
	}
}
