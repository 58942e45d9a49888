package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/lab/internal/rig"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
)

type verifyOptions struct {
	streams *cli.Streams
	count   int
	format  cli.Format
}

func newPlanCmd(s *cli.Streams) *cobra.Command {
	o := &verifyOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Compare the figures of percctl plan with counted and measured transactions",
		Long: `Compare the requests and round trips that percctl plan expects of a transaction with
counted ones, and its latency with a measured one. The exit code is 4 if requests or
round trips differ.`,
		Example: `  lab bench plan`,
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := rig.Between("count", o.count, 1, 10_000); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&o.count, "count", 10, "number of operations of each kind to measure for the latency")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// A verification is what lab bench plan prints.
type verification struct {
	Agree bool           `json:"agree"` // no request and no round trip differs
	Lines []verifiedLine `json:"lines"` // requests and round trips, planned and counted
	// Latencies are only shown, because a measured one includes what this machine
	// adds.
	Latencies []verifiedLatency `json:"latencies"` // planned and measured, with 5 ms more for each request; they do not affect agree
}

// A verifiedLine is a kind of transaction, as planned and as counted.
type verifiedLine struct {
	Name         string `json:"name"`                // of the kind of transaction
	Oracle       string `json:"oracle"`              // direct or served
	Requests     int    `json:"requests"`            // as planned
	Counted      int    `json:"counted_requests"`    // exactly
	RoundTrips   int    `json:"round_trips"`         // as planned
	CountedTrips int    `json:"counted_round_trips"` // exactly
	Bytes        int    `json:"bytes"`               // as planned, about
	CountedBytes int    `json:"counted_bytes"`       // exactly
	Agree        bool   `json:"agree"`               // neither requests nor round trips differ
}

// A verifiedLatency is the latency of a kind of transaction, as planned and as
// measured.
type verifiedLatency struct {
	Name     string  `json:"name"`                  // of the kind of transaction
	Oracle   string  `json:"oracle"`                // direct or served
	Planned  float64 `json:"planned_ms"`            // round trips × 5 ms
	Measured float64 `json:"measured_p50_ms"`       // including what this machine adds
	Ratio    float64 `json:"measured_over_planned"` // their ratio
}

// planned are the kinds of bench trips in the form that percctl plan takes. Scans are
// left out: their number of requests depends on what they find.
var planned = map[string]capacity.Kind{
	"read":             {Reads: 1},
	"read_stale":       {Reads: 1, Stale: true},
	"latest":           {Reads: 1, Stale: true},
	"read100":          {Reads: 1, ReadRows: 100},
	"write":            {Rows: 1},
	"write10columns":   {Rows: 1, Cells: 10},
	"write2":           {Rows: 2},
	"write10":          {Rows: 10},
	"write100":         {Rows: 100},
	"write2tables":     {Rows: 2, Tables: 2},
	"change":           {Reads: 1, Rows: 1},
	"transfer":         {Reads: 2, Rows: 2},
	"transfer_batched": {Reads: 1, ReadRows: 2, Rows: 2},
}

// verifiedDelay is the delay of each request in the comparison of latencies.
const verifiedDelay = 5 * time.Millisecond

func (o *verifyOptions) run(ctx context.Context) error {
	v, err := o.report(ctx)
	if err != nil {
		return err
	}
	if err := cli.Print(o.streams.Out, o.format, v, v.text); err != nil {
		return err
	}
	if !v.Agree {
		return &cli.Error{Code: cli.ExitFound, Err: errors.New("the plan and the counts differ")}
	}
	return nil
}

func (o *verifyOptions) report(ctx context.Context) (verification, error) {
	v := verification{Agree: true, Lines: []verifiedLine{}, Latencies: []verifiedLatency{}}
	for _, served := range []bool{false, true} {
		mode := (&shared{served: served}).oracleMode()
		w := capacity.Workload{Oracle: mode, RTT: rig.MS(verifiedDelay), OracleRTT: rig.MS(verifiedDelay), Parallelism: 64}
		counted, err := countTrips(ctx, served)
		if err != nil {
			return v, err
		}
		for _, c := range counted {
			kind, ok := planned[c.Name]
			if !ok {
				continue
			}
			p := w.Requests(kind)
			line := verifiedLine{Name: c.Name, Oracle: mode, Requests: p.Requests, Counted: c.Requests, RoundTrips: p.RoundTrips, CountedTrips: c.Critical,
				Bytes: int(p.Bytes), CountedBytes: c.Sent + c.Received}
			line.Agree = line.Requests == line.Counted && line.RoundTrips == line.CountedTrips
			v.Agree = v.Agree && line.Agree
			v.Lines = append(v.Lines, line)
		}
		measured, err := (&delayOptions{streams: o.streams, count: o.count}).lines(ctx, verifiedDelay, served)
		if err != nil {
			return v, err
		}
		for _, m := range measured {
			if i := slices.IndexFunc(delayedOps, func(d delayed) bool { return d.what == m.What }); delayedOps[i].kind != (capacity.Kind{}) {
				p := w.Requests(delayedOps[i].kind)
				v.Latencies = append(v.Latencies, verifiedLatency{Name: m.What, Oracle: mode, Planned: p.Latency, Measured: m.P50, Ratio: m.P50 / p.Latency})
			}
		}
	}
	return v, nil
}

func (v verification) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "ORACLE", "TRANSACTION", "REQUESTS", "COUNTED", "ROUND TRIPS", "COUNTED", "BYTES, ABOUT", "COUNTED", "")
	for _, l := range v.Lines {
		agree := "agree"
		if !l.Agree {
			agree = "DIFFER"
		}
		cli.WriteRow(t, l.Oracle, l.Name, strconv.Itoa(l.Requests), strconv.Itoa(l.Counted), strconv.Itoa(l.RoundTrips), strconv.Itoa(l.CountedTrips), strconv.Itoa(l.Bytes), strconv.Itoa(l.CountedBytes), agree)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nLatency where each request takes %v more than it does:\n", verifiedDelay)
	t = cli.NewTable(w)
	cli.WriteRow(t, "ORACLE", "TRANSACTION", "PLANNED ms", "MEASURED ms", "RATIO")
	for _, l := range v.Latencies {
		cli.WriteRow(t, l.Oracle, l.Name, cli.Fixed(l.Planned, 1), cli.Fixed(l.Measured, 1), cli.Fixed(l.Ratio, 2))
	}
	return t.Flush()
}
