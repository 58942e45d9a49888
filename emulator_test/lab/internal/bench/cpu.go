package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type cpuOptions struct {
	shared
}

func newCPUCmd(s *cli.Streams) *cobra.Command {
	o := &cpuOptions{shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "cpu",
		Short: "Measure the client's own CPU time and allocations, with a stub of Bigtable",
		Long: `Measure the CPU time and allocations of transactions in the client's process, compared
with those of the Bigtable client for the same number of requests. A stub in another
process answers requests at once and stores nothing, and timestamps come from memory,
so that the figures include neither the emulator nor the oracle. Raw operations and
ours take turns, as in bench compare.

A read is one ReadRows. A transaction that writes one cell is two CheckAndMutateRow;
one that writes ten rows is two, two MutateRows and one ReadRows. The raw operations
send the same kinds of requests, with one cell and the simplest filter each.`,
		Example: `  lab bench cpu`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd, 8, 7, 200*time.Millisecond)
	_ = cmd.Flags().MarkHidden("served") // this measurement has no oracle
	return cmd
}

// A cpuReport is what lab bench cpu prints.
type cpuReport struct {
	Machine rig.Machine `json:"machine"` // where and when
	Callers int         `json:"callers"` // concurrent
	Lines   []cpuLine   `json:"lines"`   // one for each kind of work
}

// A cpuLine is one kind of operation. Values are medians over the rounds, for one
// operation of the client's process. Values with "over" are the medians of the
// differences in single rounds.
type cpuLine struct {
	Name      string  `json:"name"`                            // of the kind
	Rows      int     `json:"rows"`                            // of an operation
	Requests  float64 `json:"requests"`                        // to Bigtable, ours
	RawCPU    float64 `json:"raw_us"`                          // CPU time of the Bigtable client alone, in microseconds
	CPU       float64 `json:"us"`                              // of ours
	OverCPU   float64 `json:"over_us"`                         // what ours takes more
	RawAllocs float64 `json:"raw_allocations"`                 // of the Bigtable client alone
	Allocs    float64 `json:"allocations"`                     // of ours
	Over      float64 `json:"over_allocations"`                // how many more ours makes
	RawBytes  float64 `json:"raw_allocated_bytes"`             // of the Bigtable client alone
	Bytes     float64 `json:"allocated_bytes"`                 // of ours
	GoalCPU   float64 `json:"goal_over_us,omitempty"`          // for over_us
	Goal      float64 `json:"goal_over_allocations,omitempty"` // for over_allocations
	Ops       int     `json:"operations"`                      // in all rounds
}

func (o *cpuOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *cpuOptions) report(ctx context.Context) (rep cpuReport, err error) {
	rep = cpuReport{Machine: rig.ThisMachine(), Callers: o.callers, Lines: []cpuLine{}}
	r, err := rig.StartServer(ctx, o.profiles, "stub")
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	cells := rig.TableSpec{Name: "cells", Rows: 1000, Columns: 1, Bytes: 100}
	if err := r.WithAdmin(ctx, cells.Init); err != nil {
		return rep, err
	}
	r.Served = rig.LocalOracle
	if err := r.Add(ctx, 1); err != nil {
		return rep, err
	}
	for _, c := range []struct {
		name, raw, op string
		batch         int
		goalCPU, goal float64
	}{
		{"read of one cell", "raw-get", "get-shared", 0, 8, 18},
		{"read of one row", "raw-row", "row-shared", 0, 0, 0},
		{"read of 100 rows", "raw-rows", "rows", 100, 0, 0},
		{"write of one cell", "raw-pair", "write", 0, 25, 50},
		{"write of ten rows", "raw-commit", "writes", 10, 0, 0},
		{"write of 100 rows", "raw-commit", "writes", 100, 0, 0},
	} {
		rig.Progress(o.streams, "%s", c.name)
		line, err := o.line(ctx, r, o.on(cells, c.raw, c.batch), o.on(cells, c.op, c.batch))
		if err != nil {
			return rep, fmt.Errorf("%s: %w", c.name, err)
		}
		line.Name, line.Rows, line.GoalCPU, line.Goal = c.name, max(c.batch, 1), c.goalCPU, c.goal
		rep.Lines = append(rep.Lines, line)
	}
	return rep, nil
}

func (o *cpuOptions) line(ctx context.Context, r *rig.Run, raw, ours rig.Task) (line cpuLine, err error) {
	var v [8][]float64
	for n := range o.rounds + 1 {
		var m [2]rig.Measured
		for k := range m {
			i := (k + n) % 2
			t := []rig.Task{raw, ours}[i]
			t.Duration = o.length
			if m[i], err = r.Measure(ctx, 0, t); err != nil {
				return line, err
			}
		}
		if n == 0 {
			continue // the first round warms up
		}
		each := func(count uint64, i int) float64 { return float64(count) / float64(max(m[i].Ops, 1)) }
		for i := range 2 {
			v[i] = append(v[i], m[i].Micros(m[i].CPU))
			v[2+i] = append(v[2+i], each(m[i].Mallocs, i))
			v[4+i] = append(v[4+i], each(m[i].Bytes, i))
		}
		v[6] = append(v[6], m[1].Micros(m[1].CPU)-m[0].Micros(m[0].CPU))
		v[7] = append(v[7], each(uint64(m[1].RPCs.All()), 1))
		line.Ops += m[1].Ops
	}
	line.RawCPU, line.CPU, line.OverCPU = rig.Median(v[0]), rig.Median(v[1]), rig.Median(v[6])
	line.RawAllocs, line.Allocs, line.Over = rig.Median(v[2]), rig.Median(v[3]), rig.Median(v[3])-rig.Median(v[2])
	line.RawBytes, line.Bytes, line.Requests = rig.Median(v[4]), rig.Median(v[5]), rig.Median(v[7])
	return line, nil
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
