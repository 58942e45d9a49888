package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
)

type delayOptions struct {
	streams  *cli.Streams
	flag     string
	delays   []time.Duration
	count    int
	profiles string
	format   cli.Format
}

func newDelayCmd(s *cli.Streams) *cobra.Command {
	o := &delayOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "delay",
		Short: "Measure latency with slow requests: how many round trips are sequential",
		Long: `Measure the latency of single operations when each request takes longer: requests of
the client process to the emulator and to the oracle arrive after a delay. The latency
divided by the delay is the number of sequential round trips, plus the time for the
work itself. A direct oracle takes timestamps from Bigtable, a served one runs in
another process; the delay applies to both.

A write transaction has four round trips: start_ts, prewrite, commit_ts, primary. Its
reads come in addition. The goal with a served oracle and 5 ms is 4.3.`,
		Example: `  lab bench delay --delays 5ms`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			for _, part := range strings.Split(o.flag, ",") {
				d, err := time.ParseDuration(strings.TrimSpace(part))
				if err != nil || d < 100*time.Microsecond || d > time.Second {
					return cli.Usagef("--delays %s: it has to be durations from 100us to 1s, separated by commas", o.flag)
				}
				o.delays = append(o.delays, d)
			}
			if err := rig.Between("count", o.count, 1, 10_000); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.flag, "delays", "1ms,5ms,20ms", "delays of each request, separated by commas")
	f.IntVar(&o.count, "count", 30, "number of operations of each kind")
	f.StringVar(&o.profiles, "profiles", "", "write CPU profiles of all processes into this directory")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A delayReport is what lab bench delay prints.
type delayReport struct {
	Machine rig.Machine `json:"machine"` // where and when
	Lines   []delayLine `json:"lines"`   // one for each delay, oracle and kind of operation
}

// A delayLine is one kind of operation under one delay.
type delayLine struct {
	Delay   float64 `json:"delay_ms"`    // of each request
	Oracle  string  `json:"oracle"`      // direct or served; none for raw operations
	What    string  `json:"what"`        // the operation
	Trips   int     `json:"round_trips"` // on the protocol's critical path, including reads
	Reads   int     `json:"reads"`       // of those
	P50     float64 `json:"p50_ms"`      // median latency
	P95     float64 `json:"p95_ms"`      // of the latency
	Fastest float64 `json:"fastest_ms"`  // of the latency
	// Measured is the latency in units of the delay. Net is the latency in units of
	// a raw round trip, which leaves out what this machine adds to each.
	Measured float64 `json:"p50_in_delays"`          // median latency over the delay
	Net      float64 `json:"p50_in_raw_round_trips"` // median latency over that of the raw read: without what this machine adds
	Goal     float64 `json:"goal,omitempty"`         // for p50_in_delays
	Count    int     `json:"count"`                  // operations
}

// A delayed is an operation with its number of round trips.
type delayed struct {
	op, what     string
	batch        int
	trips, reads int
	kind         capacity.Kind // the name in percctl plan; none for raw operations
}

// The operations of bench delay. The first one is a raw round trip.
var delayedOps = []delayed{
	{"raw-get", "raw ReadRow", 0, 1, 1, capacity.Kind{}},
	{"raw-write", "raw Apply", 0, 1, 0, capacity.Kind{}},
	{"get", "read of one cell, in a snapshot of its own", 0, 2, 1, capacity.Kind{Reads: 1}},
	{"write", "transaction that writes one cell", 0, 4, 0, capacity.Kind{Rows: 1}},
	{"writes", "transaction that writes ten rows", 10, 4, 0, capacity.Kind{Rows: 10}},
	{"read-write", "transaction that reads a cell and writes it", 0, 5, 1, capacity.Kind{Reads: 1, Rows: 1}},
	{"transfer", "transaction that reads two rows, one after the other, and writes them", 0, 6, 2, capacity.Kind{Reads: 2, Rows: 2}},
}

// delayGoal is the goal for write transactions with a served oracle at 5 ms, without
// their reads.
const delayGoal = 4.3

func (o *delayOptions) run(ctx context.Context) error {
	rep, err := o.report(ctx)
	if err != nil {
		return err
	}
	return cli.Print(o.streams.Out, o.format, rep, rep.text)
}

func (o *delayOptions) report(ctx context.Context) (rep delayReport, err error) {
	rep = delayReport{Machine: rig.ThisMachine(), Lines: []delayLine{}}
	for _, d := range o.delays {
		for _, served := range []bool{false, true} {
			rig.Progress(o.streams, "%v for each request, %s oracle", d, (&shared{served: served}).oracleMode())
			lines, err := o.lines(ctx, d, served)
			if err != nil {
				return rep, err
			}
			rep.Lines = append(rep.Lines, lines...)
		}
	}
	return rep, nil
}

func (o *delayOptions) lines(ctx context.Context, delay time.Duration, served bool) (lines []delayLine, err error) {
	with := shared{streams: o.streams, served: served, profiles: o.profiles, callers: 1}
	cells := rig.TableSpec{Name: "cells", Rows: 2000, Columns: 1, Bytes: 8}
	r, err := with.openAll(ctx, 0, cells)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	r.Delay = delay
	if err := r.Add(ctx, 1); err != nil {
		return nil, err
	}
	trip := 0.0
	for _, op := range delayedOps {
		t := with.on(cells, op.op, op.batch)
		for _, t.Count = range []int{3, o.count} { // the first round warms up
			m, err := r.Measure(ctx, 0, t)
			if err != nil {
				return nil, err
			}
			t.First += t.Count * max(op.batch, 1)
			if t.Count != o.count {
				continue
			}
			line := delayLine{
				Delay: rig.MS(delay), Oracle: with.oracleMode(), What: op.what, Trips: op.trips, Reads: op.reads, P50: rig.MS(m.P50), P95: rig.MS(m.P95), Fastest: rig.MS(m.Fastest),
				Measured: float64(m.P50) / float64(delay), Count: m.Ops,
			}
			if trip == 0 {
				trip = line.P50
			}
			line.Net = line.P50 / max(trip, 1e-3)
			if strings.HasPrefix(op.op, "raw-") {
				line.Oracle = "none"
			} else if served && delay == 5*time.Millisecond && op.trips > 3 {
				line.Goal = delayGoal + float64(op.reads)
			}
			lines = append(lines, line)
			break
		}
	}
	return lines, r.Check(ctx, cells.Name)
}

func (r delayReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "DELAY ms", "ORACLE", "ROUND TRIPS", "P50 ms", "P95 ms", "IN DELAYS", "GOAL", "IN RAW ROUND TRIPS", "WHAT")
	for _, l := range r.Lines {
		goal := "-"
		if l.Goal > 0 {
			goal = cli.Fixed(l.Goal, 1)
		}
		cli.WriteRow(t, cli.Fixed(l.Delay, 0), l.Oracle, strconv.Itoa(l.Trips), cli.Fixed(l.P50, 2), cli.Fixed(l.P95, 2), cli.Fixed(l.Measured, 2), goal, cli.Fixed(l.Net, 2), l.What)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nOne operation at a time. What is left to the background counts in no latency.\n%s\n", r.Machine)
	return err
}
