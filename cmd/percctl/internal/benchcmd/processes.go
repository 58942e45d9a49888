package benchcmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/telemetry"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Every emulator is of one run, so that names may be the same in all.
const (
	benchProject  = "bench"
	benchInstance = "bench"
)

// endTimeout is how long a process has for ending once it was told to.
const endTimeout = 30 * time.Second

// A run is the processes of one measurement.
type run struct {
	// profiles is where processes write CPU profiles; empty for none.
	profiles string

	emulator  *process
	address   string
	oracle    *process      // of a served oracle; nil: direct mode
	served    string        // its address
	delay     time.Duration // of each request of the workers
	noLatches bool          // workers do without them
	workers   []*process
}

// A process is this program, started again. It ends when its standard input
// does, so that none outlives the command, however that ends.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  *bufio.Reader
	stderr lockedBuilder
}

// lockedBuilder is written by the goroutine that copies a process's output.
type lockedBuilder struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start starts the emulator.
func start(ctx context.Context, profiles string) (*run, error) {
	return startServer(ctx, profiles, "emulator")
}

// startServer starts the emulator, or what stands in for it.
func startServer(ctx context.Context, profiles, command string) (*run, error) {
	r := &run{profiles: profiles}
	p, err := r.spawn(ctx, "emulator", command)
	if err != nil {
		return nil, err
	}
	r.emulator = p
	if r.address, err = p.line(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// spawn starts this program as percctl bench args.
func (r *run) spawn(ctx context.Context, name string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append([]string{"bench"}, args...)
	if r.profiles != "" {
		args = append(args, "--cpu-profile", filepath.Join(r.profiles, name+".pprof"))
	}
	p := &process{name: name, cmd: exec.CommandContext(ctx, self, args...)}
	p.cmd.Args[0] = os.Args[0]
	p.cmd.Env = telemetry.NextChildEnv()
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = endTimeout
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a process of the benchmark: %w", err)
	}
	return p, nil
}

// line reads a line of a process's output.
func (p *process) line() (string, error) {
	text, err := p.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("process %s of the benchmark ended: %s", p.name, strings.TrimSpace(p.stderr.String()))
	}
	return strings.TrimSpace(text), nil
}

// ask sends a process an order and reads its answer.
func (p *process) ask(o order) (answer, error) {
	var a answer
	text, err := json.Marshal(o)
	if err != nil {
		return a, err
	}
	if _, err := p.stdin.Write(append(text, '\n')); err != nil {
		return a, fmt.Errorf("process %s of the benchmark: %w: %s", p.name, err, strings.TrimSpace(p.stderr.String()))
	}
	reply, err := p.line()
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(reply), &a); err != nil {
		return a, fmt.Errorf("process %s of the benchmark answered %q: %w", p.name, cli.Shorten(reply, 200), err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("process %s of the benchmark: %s", p.name, a.Error)
	}
	return a, nil
}

// end ends a process.
func (p *process) end() error {
	_ = p.stdin.Close()
	kill := time.AfterFunc(endTimeout, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("process %s of the benchmark: %w: %s", p.name, err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

// add starts worker processes.
func (r *run) add(ctx context.Context, n int) error {
	for range n {
		args := []string{"worker", "--emulator", r.address, "--oracle", r.served, "--delay", r.delay.String(), fmt.Sprint("--no-latches=", r.noLatches)}
		p, err := r.spawn(ctx, fmt.Sprint("worker", len(r.workers)), args...)
		if err != nil {
			return err
		}
		r.workers = append(r.workers, p)
	}
	return nil
}

// all sends orders to all workers at a time, and returns their answers.
func (r *run) all(orderOf func(i int) order) ([]answer, error) {
	answers, errs := make([]answer, len(r.workers)), make([]error, len(r.workers))
	var wg sync.WaitGroup
	for i, p := range r.workers {
		wg.Go(func() { answers[i], errs[i] = p.ask(orderOf(i)) })
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// close ends all processes, the emulator last.
func (r *run) close() error {
	var errs []error
	for _, p := range r.workers {
		errs = append(errs, p.end())
	}
	if r.oracle != nil {
		errs = append(errs, r.oracle.end())
	}
	return errors.Join(append(errs, r.emulator.end())...)
}

// connect connects to the emulator.
func (r *run) connect(ctx context.Context) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	conn, err := txntest.Dial(r.address)
	if err != nil {
		return nil, nil, nil, err
	}
	bt, admin, err := txntest.Open(ctx, conn, benchProject, benchInstance)
	if err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return bt, admin, func() { _, _, _ = bt.Close(), admin.Close(), conn.Close() }, nil
}

// newEmulatorCmd is the emulator's process: it prints its address, and for each
// line that it reads the CPU time it has used, and ends with its standard input.
func newEmulatorCmd(s *cli.Streams) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:    "emulator",
		Short:  "The emulator process of a measurement",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			e, err := txntest.StartEmulator("127.0.0.1:0")
			if err != nil {
				return err
			}
			defer e.Close()
			fmt.Fprintln(s.Out, e.Addr())
			return tellCPU(s)
		},
	}
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	return cmd
}

// tellCPU answers each line with the CPU time that this process has used, until
// there are no more. After the line "profile FILE" a CPU profile is taken, until
// the line "end".
func tellCPU(s *cli.Streams) error {
	stop := func() {}
	defer func() { stop() }()
	lines := bufio.NewScanner(s.In)
	for lines.Scan() {
		file, profile := strings.CutPrefix(lines.Text(), "profile ")
		if profile || lines.Text() == "end" {
			stop()
			stop = func() {}
		}
		if profile {
			var err error
			if stop, err = cli.StartProfile(file); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(s.Out, cpuTime().Nanoseconds()); err != nil {
			return err
		}
	}
	return lines.Err()
}
