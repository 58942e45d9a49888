// Package rig starts the processes of a measurement and sends them orders.
//
// A Run (run.go) starts an emulator, or a stub of it (stub.go), an oracle (oracle.go)
// and workers (worker.go); their commands are in processes.go. It sends orders to the
// workers (orders.go), which count their requests (rpcs.go) and can have a slow network
// (link.go). Workers run observers (load.go), cluster in batches (batch.go), or carry
// out tasks (task.go): they repeat an operation (operations.go, bank.go,
// brokerageops.go) on tables that tables.go makes, and return what they measured
// (measured.go).
package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/child"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// Each run has its own emulator, so all of them can use the same names.
const (
	Project  = "bench"
	Instance = "bench"
)

// endTimeout is how long a process may take to end.
const endTimeout = 30 * time.Second

// A Run is the processes of one measurement.
type Run struct {
	// profiles is the run's directory for CPU profiles; empty for none.
	profiles string

	emulator  *child.Process
	Address   string
	oracle    *child.Process // the server of a served oracle; nil: direct mode
	Served    string         // its address
	Delay     time.Duration  // of each request of the workers
	NoLatches bool           // workers do not use latches
	Workers   []*child.Process
}

// started counts the runs of this process.
var started atomic.Int64

// Start starts the emulator.
func Start(ctx context.Context, profiles string) (*Run, error) {
	return StartServer(ctx, profiles, "emulator")
}

// StartServer starts the emulator, or a process that replaces it.
func StartServer(ctx context.Context, profiles, command string) (*Run, error) {
	if profiles != "" {
		// A measurement may start several emulators, one after the other.
		profiles = filepath.Join(profiles, strconv.FormatInt(started.Add(1), 10))
		if err := os.MkdirAll(profiles, 0o755); err != nil {
			return nil, err
		}
	}
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

// spawn starts this program with the arguments bench and args.
func (r *Run) spawn(ctx context.Context, name string, args ...string) (*child.Process, error) {
	args = append([]string{"bench"}, args...)
	if r.profiles != "" {
		args = append(args, "--cpu-profile", filepath.Join(r.profiles, name+".pprof"))
	}
	return child.Start(ctx, child.Config{Name: name, Args: args})
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

// Serve starts a served oracle for the workers that are added later. The metadata table
// must exist.
func (r *Run) Serve(ctx context.Context) error {
	p, err := r.spawn(ctx, "oracle", "oracle", "--emulator", r.Address)
	if err != nil {
		return err
	}
	r.oracle = p
	if r.Served, err = p.Line(); err != nil {
		return err
	}
	// Wait until the server leads.
	c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{r.Served}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = c.Timestamp(ctx)
	return err
}

// All sends an order to each worker at the same time, and returns the answers.
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

// WithAdmin calls f with Bigtable clients of this process.
func (r *Run) WithAdmin(ctx context.Context, f func(context.Context, *bigtable.Client, *bigtable.AdminClient) error) error {
	bt, adminClient, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	return f(ctx, bt, adminClient)
}

// MakeTables makes pairs of tables and fills them.
func (r *Run) MakeTables(ctx context.Context, specs ...TableSpec) (err error) {
	bt, adminClient, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, t := range specs {
		if err := t.Init(ctx, bt, adminClient); err != nil {
			return err
		}
	}
	client, err := txn.NewClient(ctx, bt, txn.Config{TokenTTL: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()
	for _, t := range specs {
		if err := t.fill(ctx, bt, client); err != nil {
			return fmt.Errorf("filling table %s: %w", t.Name, err)
		}
	}
	return nil
}

// Check runs the consistency check over tables, and fails at a violation.
func (r *Run) Check(ctx context.Context, tables ...string) error {
	return r.WithClient(ctx, func(client *txn.Client) error { return checkTables(ctx, client, tables) })
}

// WithClient calls f with a client of this process.
func (r *Run) WithClient(ctx context.Context, f func(*txn.Client) error) (err error) {
	bt, _, closeAll, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	cfg := txn.Config{TokenTTL: -1}
	if r.Served != "" {
		oracle, err := tso.NewClient(tso.ClientConfig{Addresses: []string{r.Served}})
		if err != nil {
			return err
		}
		defer func() { _ = oracle.Close() }()
		cfg.Oracle = oracle
	}
	client, err := txn.NewClient(ctx, bt, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(ctx)) }()
	return f(client)
}

// pollEvery is how often workers are asked for their progress.
const pollEvery = 100 * time.Millisecond

// Await asks the workers for their progress until done returns true. It fails if there
// was no progress for stall.
func (r *Run) Await(ctx context.Context, stall time.Duration, done func(loaded, committed int) bool) error {
	most, since := -1, time.Now()
	for {
		loaded, committed, err := r.status()
		if err != nil {
			return errors.Join(ctx.Err(), err)
		}
		if done(loaded, committed) {
			return nil
		}
		if loaded+committed > most {
			most, since = loaded+committed, time.Now()
		}
		if time.Since(since) > stall {
			return fmt.Errorf("no progress for %v, after %d loaded changes and %d committed runs", stall, loaded, committed)
		}
		if err := Pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

// status adds up the progress of the workers.
func (r *Run) status() (loaded, committed int, err error) {
	answers, err := r.All(func(int) Order { return Order{Do: "status"} })
	for _, a := range answers {
		loaded, committed = loaded+a.Loaded, committed+a.Committed
	}
	return loaded, committed, err
}

// StopAll stops all workers, and adds up their answers.
func (r *Run) StopAll() (Answer, error) {
	answers, err := r.All(func(int) Order { return Order{Do: "stop"} })
	var sum Answer
	for _, a := range answers {
		sum.add(a)
	}
	return sum, err
}

// Measure makes the i-th worker carry out a task. The result includes the emulator's
// CPU time. Both processes collect garbage before, so that no task pays for the garbage of
// the one before it.
func (r *Run) Measure(ctx context.Context, i int, t Task) (Measured, error) {
	before, err := r.Send("gc")
	if err != nil {
		return Measured{}, errors.Join(ctx.Err(), err)
	}
	a, err := Ask(r.Workers[i], Order{Do: "measure", Task: t})
	if err != nil {
		return Measured{}, errors.Join(ctx.Err(), err)
	}
	after, err := r.EmulatorCPU()
	a.Measured.Emulator = after - before
	return a.Measured, err
}

// MeasureAll makes all workers carry out tasks at the same time, and adds up the
// results. Durations and latencies are the largest ones.
func (r *Run) MeasureAll(ctx context.Context, taskOf func(i int) Task) (sum Measured, err error) {
	before, err := r.EmulatorCPU()
	if err != nil {
		return sum, errors.Join(ctx.Err(), err)
	}
	answers, err := r.All(func(i int) Order { return Order{Do: "measure", Task: taskOf(i)} })
	if err != nil {
		return sum, errors.Join(ctx.Err(), err)
	}
	for _, a := range answers {
		m := a.Measured
		sum.Ops += m.Ops
		sum.CPU += m.CPU
		sum.Elapsed, sum.P50, sum.P99 = max(sum.Elapsed, m.Elapsed), max(sum.P50, m.P50), max(sum.P99, m.P99)
	}
	after, err := r.EmulatorCPU()
	sum.Emulator = after - before
	return sum, err
}

// EmulatorCPU returns the CPU time that the emulator has used.
func (r *Run) EmulatorCPU() (time.Duration, error) { return r.Send("cpu") }

// Send sends the emulator's process a line, and returns the CPU time that it has used.
func (r *Run) Send(line string) (time.Duration, error) {
	if err := r.emulator.WriteLine(line); err != nil {
		return 0, err
	}
	answer, err := r.emulator.Line()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(answer, 10, 64)
	return time.Duration(n), err
}
