// Package child starts this program again as a child process, and talks to it by
// its standard input and output, in lines.
//
// A child ends when its standard input does, so none outlives its parent, however the parent ends.
package child

import (
	"bufio"
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

	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
)

// A Config says what to start.
type Config struct {
	// Name of the child in errors. Defaults to "child".
	Name string
	// Program to start. Defaults to this one.
	Program string
	Args    []string
	// Env is its environment. Defaults to telemetry.NextChildEnv.
	Env []string
	// Stderr receives its standard error. Defaults to memory, for errors.
	Stderr io.Writer
}

// patience is how long a child may take to end after its context has.
const patience = 30 * time.Second

// A Process is a child. All methods may be called at the same time, but only one
// of those that read: Line, Ask, Each.
type Process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr text

	waited sync.Once
	err    error // of Wait

	mu      sync.Mutex
	reading chan struct{} // closed when Each ends; nil without one
	killed  bool
	stopped bool
}

// Start starts a child. When ctx ends, it gets SIGTERM, and SIGKILL if it has not
// ended half a minute later.
func Start(ctx context.Context, cfg Config) (*Process, error) {
	if cfg.Name == "" {
		cfg.Name = "child"
	}
	p := &Process{name: cfg.Name}
	if err := p.start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("starting process %s: %w", cfg.Name, err)
	}
	return p, nil
}

func (p *Process) start(ctx context.Context, cfg Config) (err error) {
	if p.cmd, err = command(ctx, cfg); err != nil {
		return err
	}
	if p.cmd.Stderr = cfg.Stderr; cfg.Stderr == nil {
		p.cmd.Stderr = &p.stderr
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.stdout = bufio.NewReader(out)
	return p.cmd.Start()
}

func command(ctx context.Context, cfg Config) (*exec.Cmd, error) {
	program := cfg.Program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		program = self
	}
	cmd := exec.CommandContext(ctx, program, cfg.Args...)
	if cfg.Program == "" {
		cmd.Args[0] = os.Args[0] // a test's binary goes by the name that it was called
	}
	if cmd.Env = cfg.Env; cfg.Env == nil {
		cmd.Env = telemetry.NextChildEnv()
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	return cmd, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Line reads a line of its output.
func (p *Process) Line() (string, error) {
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("process %s ended: %s", p.name, &p.stderr)
	}
	return strings.TrimSpace(line), nil
}

// WriteLine writes a line to its input.
func (p *Process) WriteLine(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("process %s: %w: %s", p.name, err, &p.stderr)
	}
	return nil
}

// Send writes a line of JSON to its input.
func (p *Process) Send(order any) error {
	line, err := json.Marshal(order)
	if err != nil {
		return err
	}
	return p.WriteLine(string(line))
}

// Receive reads a line of JSON.
func (p *Process) Receive(answer any) error {
	line, err := p.Line()
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), answer); err != nil {
		return fmt.Errorf("process %s answered %.200q: %w", p.name, line, err)
	}
	return nil
}

// Ask sends an order and receives the answer.
func (p *Process) Ask(order, answer any) error {
	if err := p.Send(order); err != nil {
		return err
	}
	return p.Receive(answer)
}

// Each calls f with each line of its output until there are no more, in a goroutine of its own.
// Half a line, of a process that was killed, is left out. Wait and End return after the last one.
func (p *Process) Each(f func(line []byte)) {
	ended := make(chan struct{})
	p.mu.Lock()
	p.reading = ended
	p.mu.Unlock()
	go func() {
		defer close(ended)
		eachLine(p.stdout, f)
	}()
}

// Kill ends the process with SIGKILL.
func (p *Process) Kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
}

// Suspend stops the process without ending it, until Resume; it reports whether it did.
func (p *Process) Suspend() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped || p.killed || suspend(p.cmd.Process) != nil {
		return false
	}
	p.stopped = true
	return true
}

// Resume continues a process that was suspended.
func (p *Process) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		p.stopped = false
		_ = resume(p.cmd.Process)
	}
}

// CloseInput asks the process to end.
func (p *Process) CloseInput() { _ = p.stdin.Close() }

// Wait waits until the process has ended. An error has what it wrote on standard error.
func (p *Process) Wait() error {
	p.mu.Lock()
	reading := p.reading
	p.mu.Unlock()
	if reading != nil {
		<-reading
	}
	p.waited.Do(func() {
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("process %s: %w: %s", p.name, err, &p.stderr)
		}
	})
	return p.err
}

// End asks the process to end and waits until it has. One that takes longer than
// patience is killed, which is an error.
func (p *Process) End(patience time.Duration) error {
	p.Resume()
	p.CloseInput()
	late := time.AfterFunc(patience, p.Kill)
	err := p.Wait()
	if !late.Stop() {
		return fmt.Errorf("process %s did not end within %v", p.name, patience)
	}
	return err
}

// Killed reports whether the process was ended by a signal. It is called after Wait.
func (p *Process) Killed() bool {
	return p.cmd.ProcessState != nil && p.cmd.ProcessState.ExitCode() == -1
}

// Attend is for the child: it returns a context that ends when the input does,
// because the parent has nothing left to do or is dead. Each line of the input is
// for f, which may be nil. An interrupt, which a terminal sends to every process,
// is the parent's to handle; SIGTERM ends the child like a crash.
func Attend(ctx context.Context, in io.Reader, f func(line []byte)) (context.Context, context.CancelFunc) {
	signal.Ignore(os.Interrupt)
	signal.Reset(syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		eachLine(bufio.NewReader(in), f)
	}()
	return ctx, cancel
}

func eachLine(from *bufio.Reader, f func(line []byte)) {
	for {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return
		}
		if f != nil {
			f(line)
		}
	}
}

// text is written by the goroutine that copies a process's output.
type text struct {
	mu  sync.Mutex
	all strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(b)
}

func (t *text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(t.all.String())
}
