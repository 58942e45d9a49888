package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/cputime"
	"github.com/percolator-bigtable/percolator/internal/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

// A Task is one round of one kind of operation in a worker process: callers
// repeat it, each one after the other, for a time or a number of operations.
type Task struct {
	Op      string // a name in operations
	Table   string
	Callers int
	// Duration is how long; 0: Count operations in all.
	Duration time.Duration
	Count    int

	Rows    int    // of the table
	Columns int    // that an operation reads or writes
	Batch   int    // rows that an operation reads or writes
	Bytes   int    // of a value
	First   int    // of the rows that writes go over in turn; the next round goes on
	Profile string // a file for a CPU profile; none if it is empty
}

// A Measured is what a task took.
type Measured struct {
	Ops      int
	Elapsed  time.Duration
	CPU      time.Duration // of the worker process
	Mallocs  uint64
	Bytes    uint64          // allocated
	P50, P95 time.Duration   // of single operations
	P99, Max time.Duration   //
	Fastest  time.Duration   //
	Stats    txn.Stats       // what was added to the client's counts
	RPCs     rpcs            // that the process sent
	Oracle   uint64          // requests to a served oracle
	Emulator time.Duration   // CPU of the emulator; filled in by run.measure
	Samples  []time.Duration // of single operations, if the task names a Count
}

// An operation is done by one of a task's callers; i counts those of the round.
type operation func(ctx context.Context, w *worker, t *Task, i int) error

// KeyOf is the i-th row of a table, in order.
func KeyOf(i int) string { return fmt.Sprintf("row%08d", i) }

// anyRow is a random row.
func (t *Task) anyRow() string { return KeyOf(rand.IntN(t.Rows)) }

// stride is prime to any table size that is not a multiple of it, so that rows
// are written in turn, and yet not one beside the other.
const stride = 7919

// turnRow is the row that a write goes to: each in its turn, so that no row
// gathers more versions than others.
func (t *Task) turnRow(i int) string {
	return KeyOf(int((int64(t.First) + int64(i)) * stride % int64(t.Rows)))
}

// Measure carries out a task.
func (w *worker) measure(ctx context.Context, t Task) (Measured, error) {
	op, ok := operations[t.Op]
	if !ok {
		return Measured{}, fmt.Errorf("unknown operation %q", t.Op)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w.snapshot = nil
	var before txn.Stats
	if w.client != nil {
		before = w.client.Stats()
	}
	profiled, err := cli.StartProfile(t.Profile)
	if err != nil {
		return Measured{}, err
	}
	defer profiled()
	w.rpcs.take()
	oracle := w.oracleRequests()
	var memory, after runtime.MemStats
	runtime.ReadMemStats(&memory)
	var next atomic.Int64
	var wg sync.WaitGroup
	took, errs := make([][]time.Duration, t.Callers), make([]error, t.Callers)
	used, began := cputime.Used(), time.Now()
	end := began.Add(t.Duration)
	for c := range t.Callers {
		wg.Go(func() {
			for last := began; t.Duration == 0 || last.Before(end); {
				i := int(next.Add(1)) - 1
				if t.Duration == 0 && i >= t.Count {
					return
				}
				if errs[c] = op(ctx, w, &t, i); errs[c] != nil {
					stop() // the others too
					return
				}
				now := time.Now()
				took[c] = append(took[c], now.Sub(last))
				last = now
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return Measured{}, err
	}
	// What is left to the background belongs to the operations.
	if err := w.drain(ctx); err != nil {
		return Measured{}, err
	}
	m := Measured{Elapsed: time.Since(began), CPU: cputime.Used() - used}
	runtime.ReadMemStats(&after)
	m.Mallocs, m.Bytes = after.Mallocs-memory.Mallocs, after.TotalAlloc-memory.TotalAlloc
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	m.Ops = len(all)
	m.quantiles(all)
	if w.client != nil {
		m.Stats = w.client.Stats()
		m.Stats.Begun -= before.Begun
		m.Stats.Committed -= before.Committed
		m.Stats.Conflicts -= before.Conflicts
		m.Stats.Retries -= before.Retries
		m.Stats.Timestamps -= before.Timestamps
	}
	m.RPCs = w.rpcs.take()
	m.Oracle = w.oracleRequests() - oracle
	if t.Duration == 0 {
		m.Samples = all
	}
	return m, nil
}

func (m *Measured) quantiles(sorted []time.Duration) {
	if len(sorted) == 0 {
		return
	}
	at := func(q float64) time.Duration { return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)] }
	m.Fastest, m.P50, m.P95, m.P99, m.Max = sorted[0], at(.5), at(.95), at(.99), at(1)
}

// drain waits until the client has nothing left to do in the background.
func (w *worker) drain(ctx context.Context) error {
	for w.client != nil && w.client.Stats().BackgroundCells > 0 {
		if err := Pause(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) oracleRequests() uint64 {
	if w.oracle == nil {
		return 0
	}
	return w.oracle.Stats().Requests
}

// Measure has the i-th worker carry out a task, with the emulator's CPU.
func (r *Run) Measure(ctx context.Context, i int, t Task) (Measured, error) {
	before, err := r.EmulatorCPU()
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

// MeasureAll has all workers carry out tasks at a time and adds up what they
// did; the longest counts.
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

// EmulatorCPU is the CPU time that the emulator has used.
func (r *Run) EmulatorCPU() (time.Duration, error) { return r.Tell("cpu") }

// Tell sends the emulator a line, and returns the CPU time it has used.
func (r *Run) Tell(line string) (time.Duration, error) {
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

// PerSecond is the rate of a round.
func (m Measured) PerSecond() float64 { return float64(m.Ops) / m.Elapsed.Seconds() }

// Micros is a duration per operation, in microseconds.
func (m Measured) Micros(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(max(m.Ops, 1))
}

// Quantile of values that need not be sorted; 0 of none.
func Quantile(q float64, values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 == len(sorted) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Median of values that need not be sorted; 0 of none.
func Median(values []float64) float64 { return Quantile(.5, values) }
