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

type scaleOptions struct {
	shared
	processes []int
	flag      string
	rows      int
}

func newScaleCmd(s *cli.Streams) *cobra.Command {
	o := &scaleOptions{shared: shared{streams: s}}
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "Measure reads and transactions with several client processes",
		Long: `Measure reads of one cell and transactions that write one cell, raw and ours, with
several client processes on one emulator. All of them share the processors of one
machine. So the figures show whether processes delay each other, for example at the
oracle, but not how much faster more machines would be. For observers, see
lab bench observers throughput.`,
		Example: `  lab bench scale --processes 1,4`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.processes, err = rig.Numbers("processes", o.flag, 1, 32); err != nil {
				return err
			}
			if err := errors.Join(o.check(), rig.Between("rows", o.rows, 1000, 1_000_000)); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags(cmd, 16, 5, 250*time.Millisecond)
	cmd.Flags().IntVar(&o.rows, "rows", 10_000, "rows of each table")
	cmd.Flags().StringVar(&o.flag, "processes", "1,2,4", "numbers of client processes, separated by commas")
	return cmd
}

// A scaleReport is what lab bench scale prints.
type scaleReport struct {
	Machine rig.Machine `json:"machine"` // where and when
	Callers int         `json:"callers"` // in each process
	Oracle  string      `json:"oracle"`  // direct or served
	Lines   []scaleLine `json:"lines"`   // one for each number of processes
}

// A scaleLine is the result for a number of processes. Rates are of all processes
// together, and medians over the rounds.
type scaleLine struct {
	Processes  int     `json:"processes"`             // client processes
	RawRead    float64 `json:"raw_reads_per_second"`  // of one column
	Read       float64 `json:"reads_per_second"`      // of one cell, each in its own snapshot
	ReadRatio  float64 `json:"read_ratio"`            // median of the rounds' ratios
	RawWrite   float64 `json:"raw_writes_per_second"` // Apply
	Write      float64 `json:"writes_per_second"`     // transactions that write one cell
	WriteRatio float64 `json:"write_ratio"`           // median of the rounds' ratios
	WriteCPU   float64 `json:"write_client_us"`       // CPU time of the client processes for a transaction
}

func (o *scaleOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *scaleOptions) report(ctx context.Context) (rep scaleReport, err error) {
	rep = scaleReport{Machine: rig.ThisMachine(), Callers: o.callers, Oracle: o.oracleMode(), Lines: []scaleLine{}}
	for _, n := range o.processes {
		rig.Progress(o.streams, "%d client processes", n)
		line, err := o.line(ctx, n)
		if err != nil {
			return rep, err
		}
		rep.Lines = append(rep.Lines, line)
	}
	return rep, nil
}

func (o *scaleOptions) line(ctx context.Context, processes int) (line scaleLine, err error) {
	cells := rig.TableSpec{Name: "cells", Rows: o.rows, Columns: 1, Bytes: 100}
	written := rig.TableSpec{Name: "written", Rows: o.rows, Columns: 1, Bytes: 100}
	r, err := o.openAll(ctx, processes, cells, written)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	tasks := []rig.Task{o.on(cells, "raw-get", 0), o.on(cells, "get", 0), o.on(written, "raw-write", 0), o.on(written, "write", 0)}
	rates := make([][]float64, len(tasks))
	var used []float64
	written1 := 0
	for n := range o.rounds + 1 {
		for k := range tasks {
			i := (k + n) % len(tasks)
			m, err := r.MeasureAll(ctx, func(p int) rig.Task {
				t := tasks[i]
				t.Duration = o.length
				// Each process writes its own rows.
				t.First = written1 + p*cells.Rows/processes
				return t
			})
			if err != nil {
				return line, err
			}
			written1 += m.Ops / processes
			if n > 0 { // the first round warms up
				rates[i] = append(rates[i], m.PerSecond())
				if i == 3 {
					used = append(used, m.Micros(m.CPU))
				}
			}
		}
	}
	ratio := func(ours, raw []float64) float64 {
		var all []float64
		for i := range ours {
			all = append(all, ours[i]/raw[i])
		}
		return rig.Median(all)
	}
	return scaleLine{
		Processes: processes, RawRead: rig.Median(rates[0]), Read: rig.Median(rates[1]), ReadRatio: ratio(rates[1], rates[0]),
		RawWrite: rig.Median(rates[2]), Write: rig.Median(rates[3]), WriteRatio: ratio(rates[3], rates[2]), WriteCPU: rig.Median(used),
	}, r.Check(ctx, cells.Name, written.Name)
}

func (r scaleReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "PROCESSES", "RAW READS/s", "READS/s", "RATIO", "RAW WRITES/s", "WRITES/s", "RATIO", "CLIENT µs/WRITE")
	for _, l := range r.Lines {
		cli.WriteRow(t, strconv.Itoa(l.Processes), cli.Fixed(l.RawRead, 0), cli.Fixed(l.Read, 0), cli.Fixed(l.ReadRatio, 2), cli.Fixed(l.RawWrite, 0), cli.Fixed(l.Write, 0), cli.Fixed(l.WriteRatio, 2), cli.Fixed(l.WriteCPU, 0))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d callers in each process, %s oracle\n%s\n", r.Callers, r.Oracle, r.Machine)
	return err
}
