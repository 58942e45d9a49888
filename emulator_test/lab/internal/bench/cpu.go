package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

type cpuOptions struct {
	shared
}

func newCPUCmd(s *cli.Streams) *cobra.Command {
	o := &cpuOptions{shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "cpu",
		Short: "Measure the client's own CPU time and allocations, against a stub that answers at once",
		Long: `Measure what transactions cost in the client's process, beyond what the Bigtable
client itself takes for as many requests: CPU time and allocations. A stub, in a
process of its own, answers requests at once and stores nothing, and timestamps come
from memory, so that neither the emulator nor the oracle is in the figures. Raw and
ours take turns, as in bench compare.

A read is one ReadRows; a transaction that writes one cell is two CheckAndMutateRow,
and one that writes ten rows eleven and a MutateRows. The raw operations send the
same kinds of requests, with one cell and the simplest filter each.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd, 8, 7, 200*time.Millisecond)
	_ = cmd.Flags().MarkHidden("served") // there is no oracle
	return cmd
}

// A cpuReport is what lab bench cpu prints.
type cpuReport struct {
	Machine machine   `json:"machine"` // where and when
	Callers int       `json:"callers"` // that go on at a time
	Lines   []cpuLine `json:"lines"`   // one for each kind of work
}

// A cpuLine is one kind of work. Values are medians over the rounds, for one
// operation, of the client's process; "over" is the median of the differences
// in single rounds.
type cpuLine struct {
	Name      string  `json:"name"`                            // of the kind
	Rows      int     `json:"rows"`                            // of an operation
	Requests  float64 `json:"requests"`                        // to Bigtable, ours
	RawCPU    float64 `json:"raw_us"`                          // CPU time of the Bigtable client alone, in microseconds
	CPU       float64 `json:"us"`                              // of ours
	OverCPU   float64 `json:"over_us"`                         // what ours takes beyond it
	RawAllocs float64 `json:"raw_allocations"`                 // of the Bigtable client alone
	Allocs    float64 `json:"allocations"`                     // of ours
	Over      float64 `json:"over_allocations"`                // what ours makes beyond them
	RawBytes  float64 `json:"raw_allocated_bytes"`             // of the Bigtable client alone
	Bytes     float64 `json:"allocated_bytes"`                 // of ours
	GoalCPU   float64 `json:"goal_over_us,omitempty"`          // for over_us
	Goal      float64 `json:"goal_over_allocations,omitempty"` // for over_allocations
	Ops       int     `json:"operations"`                      // in all rounds
}

// stubTS is when the stub's cells were committed: long ago for any client.
const stubTS = 1_700_000_000_000_000

func (o *cpuOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *cpuOptions) report(ctx context.Context) (rep cpuReport, err error) {
	rep = cpuReport{Machine: thisMachine(), Callers: o.callers, Lines: []cpuLine{}}
	r, err := startServer(ctx, o.profiles, "stub")
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	cells := tableSpec{name: "cells", rows: 1000, columns: 1, bytes: 100}
	if err := r.withAdmin(ctx, cells.init); err != nil {
		return rep, err
	}
	r.served = localOracle
	if err := r.add(ctx, 1); err != nil {
		return rep, err
	}
	for _, c := range []struct {
		name, raw, op string
		batch         int
		goalCPU, goal float64
	}{
		{"read of one cell", "raw-get", "get-shared", 0, 8, 40},
		{"read of one row", "raw-row", "row-shared", 0, 0, 0},
		{"read of 100 rows", "raw-rows", "rows", 100, 0, 0},
		{"write of one cell", "raw-pair", "write", 0, 25, 120},
		{"write of ten rows", "raw-ten", "writes", 10, 0, 0},
	} {
		progress(o.streams, "%s", c.name)
		line, err := o.line(ctx, r, o.on(cells, c.raw, c.batch), o.on(cells, c.op, c.batch))
		if err != nil {
			return rep, fmt.Errorf("%s: %w", c.name, err)
		}
		line.Name, line.Rows, line.GoalCPU, line.Goal = c.name, max(c.batch, 1), c.goalCPU, c.goal
		rep.Lines = append(rep.Lines, line)
	}
	return rep, nil
}

func (o *cpuOptions) line(ctx context.Context, r *run, raw, ours task) (line cpuLine, err error) {
	var v [8][]float64
	for n := range o.rounds + 1 {
		var m [2]measured
		for k := range m {
			i := (k + n) % 2
			t := []task{raw, ours}[i]
			t.Duration = o.length
			if m[i], err = r.measure(ctx, 0, t); err != nil {
				return line, err
			}
		}
		if n == 0 {
			continue // to warm up
		}
		each := func(count uint64, i int) float64 { return float64(count) / float64(max(m[i].Ops, 1)) }
		for i := range 2 {
			v[i] = append(v[i], m[i].micros(m[i].CPU))
			v[2+i] = append(v[2+i], each(m[i].Mallocs, i))
			v[4+i] = append(v[4+i], each(m[i].Bytes, i))
		}
		v[6] = append(v[6], m[1].micros(m[1].CPU)-m[0].micros(m[0].CPU))
		v[7] = append(v[7], each(uint64(m[1].RPCs.all()), 1))
		line.Ops += m[1].Ops
	}
	line.RawCPU, line.CPU, line.OverCPU = median(v[0]), median(v[1]), median(v[6])
	line.RawAllocs, line.Allocs, line.Over = median(v[2]), median(v[3]), median(v[3])-median(v[2])
	line.RawBytes, line.Bytes, line.Requests = median(v[4]), median(v[5]), median(v[7])
	return line, nil
}

// localOracle stands for the address of an oracle: timestamps come from memory.
const localOracle = "local"

// rawPair does what is the least for a conditional write in two phases.
func rawPair(ctx context.Context, w *worker, t *task, i int) error {
	row := t.turnRow(i)
	for range 2 {
		if err := t.conditional(ctx, w, row); err != nil {
			return err
		}
	}
	return nil
}

func (t *task) conditional(ctx context.Context, w *worker, row string) error {
	column := bigtable.ColumnRangeFilter(family, columnOf(0), columnOf(0)+"\x00")
	var matched bool
	return w.bt.Open(t.Table).Apply(ctx, row, bigtable.NewCondMutation(column, nil, t.mutation()), bigtable.GetCondMutationResult(&matched))
}

// rawTen sends the requests of a transaction of Batch rows: a conditional
// mutation for each, one more for the first, and one for the rest.
func rawTen(ctx context.Context, w *worker, t *task, i int) error {
	var rows []string
	var mutations []*bigtable.Mutation
	for k := range t.Batch {
		row := t.turnRow(i*t.Batch + k)
		if err := t.conditional(ctx, w, row); err != nil {
			return err
		}
		if k > 0 {
			rows, mutations = append(rows, row), append(mutations, t.mutation())
		}
	}
	if err := t.conditional(ctx, w, t.turnRow(i*t.Batch)); err != nil {
		return err
	}
	_, err := w.bt.Open(t.Table).ApplyBulk(ctx, rows, mutations)
	return err
}

// newStubCmd is the stub's process, as newEmulatorCmd is the emulator's.
func newStubCmd(s *cli.Streams) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:    "stub",
		Short:  "The stub process of a measurement",
		Hidden: true,
		Args:   cli.NoArgs,
		RunE: func(*cobra.Command, []string) (err error) {
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			columns := []txn.Column{{Family: family, Qualifier: columnOf(0)}}
			stub, err := txntest.StartStub("127.0.0.1:0",
				txntest.StubTable{Name: "cells", Columns: columns, Value: make([]byte, 100), CommitTS: stubTS},
				txntest.StubTable{Name: "cells-raw", Columns: columns, Value: make([]byte, 100)})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stub.Close()) }()
			fmt.Fprintln(s.Out, stub.Addr())
			return tellCPU(s)
		},
	}
	cmd.Flags().StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	return cmd
}

func (r cpuReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "", "REQUESTS", "RAW µs", "OURS µs", "BEYOND µs", "GOAL", "RAW ALLOCS", "OURS ALLOCS", "BEYOND", "GOAL", "OPERATIONS")
	goal := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return cli.Fixed(v, 0)
	}
	for _, l := range r.Lines {
		cli.WriteRow(t, l.Name, cli.Fixed(l.Requests, 1), cli.Fixed(l.RawCPU, 1), cli.Fixed(l.CPU, 1), cli.Fixed(l.OverCPU, 1), goal(l.GoalCPU), cli.Fixed(l.RawAllocs, 0), cli.Fixed(l.Allocs, 0), cli.Fixed(l.Over, 0), goal(l.Goal), strconv.Itoa(l.Ops))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nPer operation, of the client's process; %d callers; timestamps from memory.\n%s\n", r.Callers, r.Machine)
	return err
}
