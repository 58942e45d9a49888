// Package observers is the command lab bench observers. It measures latency,
// throughput, and the paper's Figure 7.
package observers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
)

type latencyOptions struct {
	streams  *cli.Streams
	rowsFlag string
	rows     []int
	rate     float64
	duration time.Duration
	interval time.Duration
	profiles string
	format   cli.Format
}

// NewLatencyCmd returns the command latency.
func NewLatencyCmd(s *cli.Streams) *cobra.Command {
	o := &latencyOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Measure how soon after a commit its observer has committed",
		Long: `Measure the time from the end of a commit of an observed column to the end of its
observer's commit, in tables of different sizes and under light load. With hints, the
worker's process commits the changes. Without hints, another process commits them and
the worker finds them by scanning. Scans are counted where gRPC sends them.

JSON fields: change_rate_per_second, and lines with rows, hints, changes, p50_ms and
other quantiles, sweeps, and for each change: requests_per_change to Bigtable,
scan_requests_per_change, and scan_rows_per_change and scan_bytes_per_change that scans
returned. rows_passed_per_change is how many rows the scans read without returning
them.`,
		Example: `  lab bench observers latency --rows 1000,100000`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.rows, err = rig.Numbers("rows", o.rowsFlag, 10, 1_000_000); err != nil {
				return err
			}
			if o.rate <= 0 || o.rate > 10_000 {
				return cli.Usagef("--rate %g: it has to be above 0 and at most 10000", o.rate)
			}
			if err := errors.Join(rig.CheckDuration("duration", o.duration), rig.CheckDuration("scan-interval", o.interval)); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.rowsFlag, "rows", "1000,10000,100000", "rows of the table, separated by commas")
	f.Float64Var(&o.rate, "rate", 20, "changes a second")
	f.DurationVar(&o.duration, "duration", 15*time.Second, "how long to measure each line of the table")
	f.DurationVar(&o.interval, "scan-interval", time.Second, "how long after one sweep of the table the next begins (notify.Scanner.MinInterval)")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.Table, cli.JSON)
	return cmd
}

// A latencyReport is what lab bench observers latency prints.
type latencyReport struct {
	Rate     float64       `json:"change_rate_per_second"`
	Interval float64       `json:"scan_interval_seconds"`
	CPUs     int           `json:"cpus"`
	Go       string        `json:"go"`
	Lines    []latencyLine `json:"lines"`
}

// A latencyLine is one size of the table, with or without hints, and the quantiles of
// the delays.
type latencyLine struct {
	Rows    int  `json:"rows"`
	Hints   bool `json:"hints"`
	Changes int  `json:"changes"`
	rig.Quantiles
	Sweeps     int64   `json:"sweeps"`
	Requests   float64 `json:"requests_per_change"`
	Scans      float64 `json:"scan_requests_per_change"`
	ScanRows   float64 `json:"scan_rows_per_change"`
	ScanBytes  float64 `json:"scan_bytes_per_change"`
	RowsPassed float64 `json:"rows_passed_per_change"`
}

func (o *latencyOptions) run(ctx context.Context) error {
	r := latencyReport{Rate: o.rate, Interval: o.interval.Seconds(), CPUs: runtime.NumCPU(), Go: runtime.Version(), Lines: []latencyLine{}}
	for _, rows := range o.rows {
		for _, hints := range []bool{true, false} {
			rig.Progress(o.streams, "%d rows, hints %v", rows, hints)
			line, err := o.line(ctx, rows, hints)
			if err != nil {
				return err
			}
			r.Lines = append(r.Lines, line)
		}
	}
	return cli.Print(o.streams.Out, o.format, r, r.text)
}

func (o *latencyOptions) line(ctx context.Context, rows int, hints bool) (line latencyLine, err error) {
	r, err := rig.Start(ctx, o.profiles)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	job := rig.RunOrder{Observer: "copy", Hints: hints, MinInterval: o.interval}
	if err := rig.SetUp(ctx, r, rows, job); err != nil {
		return line, err
	}
	workers := 2 // the second worker only commits changes
	if hints {
		workers = 1
	}
	if err := r.Add(ctx, workers); err != nil {
		return line, err
	}
	if _, err := rig.Ask(r.Workers[0], rig.Order{Do: "run", Run: job}); err != nil {
		return line, err
	}
	count := min(int(o.rate*o.duration.Seconds()), rows)
	// The worker registers, announces itself and makes its first sweep.
	begin := time.Now().Add(500 * time.Millisecond)
	if _, err := rig.Ask(r.Workers[workers-1], rig.Order{Do: "load", Load: rig.LoadOrder{What: "touch", Documents: rows, Count: count, Rate: o.rate, Start: begin.UnixNano(), Of: 1}}); err != nil {
		return line, err
	}
	if err := r.Await(ctx, 2*time.Minute, func(_, committed int) bool { return committed >= count }); err != nil {
		return line, err
	}
	worker, err := rig.Ask(r.Workers[0], rig.Order{Do: "stop"})
	if err != nil {
		return line, err
	}
	loads := worker.Loads
	if !hints {
		a, err := rig.Ask(r.Workers[1], rig.Order{Do: "stop"})
		if err != nil {
			return line, err
		}
		loads = a.Loads
	}
	return newLatencyLine(rows, hints, worker, loads), nil
}

func newLatencyLine(rows int, hints bool, worker rig.Answer, loads []rig.Loaded) latencyLine {
	committed := map[string]int64{}
	for _, l := range loads {
		committed[l.Row] = l.At
	}
	var all []time.Duration
	for _, d := range worker.Done {
		if at, ok := committed[d.Row]; ok {
			all = append(all, time.Duration(max(d.At-at, 0)))
		}
	}
	per := func(n float64) float64 { return n / float64(max(len(all), 1)) }
	return latencyLine{
		Rows: rows, Hints: hints, Changes: len(all), Quantiles: rig.NewQuantiles(all), Sweeps: worker.Scanner.Sweeps,
		Requests: per(float64(worker.RPCs.All())), Scans: per(float64(worker.RPCs.Scans)), ScanRows: per(float64(worker.RPCs.ScanRows)),
		ScanBytes: per(float64(worker.RPCs.ScanBytes)), RowsPassed: per(float64(worker.Scanner.Sweeps) * float64(rows)),
	}
}

func (r latencyReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "ROWS", "HINTS", "CHANGES", "P50 ms", "P95 ms", "P99 ms", "MAX ms", "SWEEPS", "REQUESTS", "SCANS", "ROWS READ", "BYTES READ", "ROWS PASSED")
	for _, l := range r.Lines {
		hints := "no"
		if l.Hints {
			hints = "yes"
		}
		cli.WriteRow(t, strconv.Itoa(l.Rows), hints, strconv.Itoa(l.Changes), cli.Fixed(l.P50, 1), cli.Fixed(l.P95, 1), cli.Fixed(l.P99, 1), cli.Fixed(l.Max, 1),
			strconv.FormatInt(l.Sweeps, 10), cli.Fixed(l.Requests, 1), cli.Fixed(l.Scans, 2), cli.Fixed(l.ScanRows, 2), cli.Fixed(l.ScanBytes, 0), cli.Fixed(l.RowsPassed, 0))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%g changes a second; REQUESTS to ROWS PASSED are per change, of the worker's process (%d CPUs, %s)\n", r.Rate, r.CPUs, r.Go)
	return err
}
