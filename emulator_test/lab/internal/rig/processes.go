// Package rig is the processes of a measurement, and what they do.
//
// A Run (processes.go) starts an emulator, or a stub of it (stub.go), an oracle
// (oracle.go) and workers (worker.go), which count their requests (rpcs.go) and may
// be put behind a slow network (link.go). Workers run observers (load.go, batch.go,
// await.go) or carry out tasks (measure.go) that repeat an operation (operations.go,
// bank.go, brokerage.go) on tables that tables.go makes.
package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Every emulator is of one run, so that names may be the same in all.
const (
	Project  = "bench"
	Instance = "bench"
)

// endTimeout is how long a process has for ending once it was told to.
const endTimeout = 30 * time.Second

// A Run is the processes of one measurement.
type Run struct {
	// profiles is where processes write CPU profiles; empty for none.
	profiles string

	emulator  *child.Process
	Address   string
	oracle    *child.Process // of a served oracle; nil: direct mode
	Served    string         // its address
	Delay     time.Duration  // of each request of the workers
	NoLatches bool           // workers do without them
	Workers   []*child.Process
}

// Commands are those that a Run starts its processes with; they are below bench.
func Commands(s *cli.Streams) []*cobra.Command {
	return []*cobra.Command{newWorkerCmd(s), newEmulatorCmd(s), newOracleCmd(s), newStubCmd(s)}
}

// Start starts the emulator.
func Start(ctx context.Context, profiles string) (*Run, error) {
	return StartServer(ctx, profiles, "emulator")
}

// StartServer starts the emulator, or what stands in for it.
func StartServer(ctx context.Context, profiles, command string) (*Run, error) {
	r := &Run{profiles: profiles}
	p, err := r.spawn(ctx, "emulator", command)
	if err != nil {
		return nil, err
	}
	r.emulator = p
	if r.Address, err = p.Line(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// spawn starts this program as lab bench args.
func (r *Run) spawn(ctx context.Context, name string, args ...string) (*child.Process, error) {
	args = append([]string{"bench"}, args...)
	if r.profiles != "" {
		args = append(args, "--cpu-profile", filepath.Join(r.profiles, name+".pprof"))
	}
	return child.Start(ctx, child.Config{Name: name, Args: args})
}

// Ask sends a worker an order and reads its answer.
func Ask(p *child.Process, o Order) (Answer, error) {
	var a Answer
	err := p.Ask(o, &a)
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	return a, err
}

// end ends a process; one that an interrupt has ended did what it should.
func end(p *child.Process) error {
	if err := p.End(endTimeout); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Add starts worker processes.
func (r *Run) Add(ctx context.Context, n int) error {
	for range n {
		args := []string{"worker", "--emulator", r.Address, "--oracle", r.Served, "--delay", r.Delay.String(), fmt.Sprint("--no-latches=", r.NoLatches)}
		p, err := r.spawn(ctx, fmt.Sprint("worker", len(r.Workers)), args...)
		if err != nil {
			return err
		}
		r.Workers = append(r.Workers, p)
	}
	return nil
}

// All sends orders to all workers at a time, and returns their answers.
func (r *Run) All(orderOf func(i int) Order) ([]Answer, error) {
	answers, errs := make([]Answer, len(r.Workers)), make([]error, len(r.Workers))
	var wg sync.WaitGroup
	for i, p := range r.Workers {
		wg.Go(func() { answers[i], errs[i] = Ask(p, orderOf(i)) })
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// Close ends all processes, the emulator last.
func (r *Run) Close() error {
	var errs []error
	for _, p := range r.Workers {
		errs = append(errs, end(p))
	}
	if r.oracle != nil {
		errs = append(errs, end(r.oracle))
	}
	return errors.Join(append(errs, end(r.emulator))...)
}

// connect connects to the emulator.
func (r *Run) connect(ctx context.Context) (*bigtable.Client, *bigtable.AdminClient, func(), error) {
	conn, err := txntest.Dial(r.Address)
	if err != nil {
		return nil, nil, nil, err
	}
	bt, adminClient, err := txntest.Open(ctx, conn, Project, Instance)
	if err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return bt, adminClient, func() { _, _, _ = bt.Close(), adminClient.Close(), conn.Close() }, nil
}

// ProcessCmd is the command of one kind of process, which may be profiled.
func ProcessCmd(use, short string, run func(ctx context.Context) error) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:    use,
		Short:  short,
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			return run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	return cmd
}

// newEmulatorCmd is the emulator's process: it prints its address, and for each
// line that it reads the CPU time it has used, and ends with its standard input.
func newEmulatorCmd(s *cli.Streams) *cobra.Command {
	return ProcessCmd("emulator", "The emulator process of a measurement", func(context.Context) error {
		e, err := txntest.StartEmulator("127.0.0.1:0")
		if err != nil {
			return err
		}
		defer e.Close()
		fmt.Fprintln(s.Out, e.Addr())
		return tellCPU(s)
	})
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
		if _, err := fmt.Fprintln(s.Out, cputime.Used().Nanoseconds()); err != nil {
			return err
		}
	}
	return lines.Err()
}
