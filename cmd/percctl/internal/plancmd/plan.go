// Package plancmd is percctl plan: the capacity that a workload needs.
package plancmd

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/capacity"
	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

type planOptions struct {
	streams  *cli.Streams
	file     string
	workload capacity.Workload // of the flags
	writes   capacity.Kind
	reads    capacity.Kind
	table    capacity.Table
	rates    capacity.Rates
	format   cli.Format
}

// workloadFlags cannot be given together with --file.
var workloadFlags = []string{"writes-per-second", "rows", "cells", "value-bytes", "tables", "reads-per-write", "hot-rows", "observed",
	"reads-per-second", "rows-per-read", "table-rows", "row-bytes", "row-cells", "retention", "processes", "oracle", "rtt", "oracle-rtt", "sweep-interval"}

// NewCmd returns the plan command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &planOptions{streams: s, rates: capacity.DefaultRates}
	var retention, rtt, oracleRTT, sweep time.Duration
	cmd := &cobra.Command{
		Use:   "plan [--file WORKLOAD]",
		Short: "Plan the capacity of Cloud Bigtable for a workload: nodes, oracle, latency, cost",
		Long: `Plan what a workload of transactions needs of Cloud Bigtable: requests and round trips
of a transaction, nodes, storage, the oracle's load, how often a hot row can be
written, what sweeps for notifications cost, network, latency and monthly cost.
Nothing is connected to.

The workload comes from flags (one kind of write transactions, one of reads, one
table) or from a file, YAML or JSON, with lists:

  transactions:
  - {name: transfer, per_second: 2000, reads: 2, rows: 2, value_bytes: 100}
  - {name: statement, per_second: 5000, reads: 1, read_rows: 20}
  tables:
  - {name: accounts, rows: 1e8, row_bytes: 500, row_cells: 4, observed: true}
  retention_hours: 24
  processes: 20
  oracle: direct

Fields are those of the workload in the json output (docs/reference). Observers are
transactions too: name them as a kind, with the acknowledgment as one more cell.

Rates of a node are as Google documents them, conditional mutations count as a read and
a write, and prices are flags; docs/performance.md has the sources and says what is
assumed.`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.workload.Retention, o.workload.RTT, o.workload.OracleRTT, o.workload.Sweep = retention.Hours(), rtt.Seconds()*1000, oracleRTT.Seconds()*1000, sweep.Seconds()
			for _, f := range workloadFlags {
				if o.file != "" && cmd.Flags().Changed(f) {
					return cli.Usagef("--%s and --file are given; the workload comes from one of them", f)
				}
			}
			if err := o.checkRates(); err != nil {
				return err
			}
			return o.run()
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.file, "file", "", "workload, YAML or JSON; - is the standard input")
	f.Float64Var(&o.writes.Rate, "writes-per-second", 0, "transactions that write, a second")
	f.IntVar(&o.writes.Rows, "rows", 1, "rows that such a transaction writes")
	f.IntVar(&o.writes.Cells, "cells", 1, "cells that it writes in each row")
	f.Float64Var(&o.writes.Bytes, "value-bytes", 100, "bytes of a written value, and of one that is read")
	f.IntVar(&o.writes.Tables, "tables", 1, "tables that the written rows are in")
	f.IntVar(&o.writes.Reads, "reads-per-write", 0, "reads of one row that follow each other in such a transaction")
	f.IntVar(&o.writes.Hot, "hot-rows", 0, "rows to which one write of each transaction goes; 0: there are none")
	f.IntVar(&o.writes.Observed, "observed", 0, "written cells that are in observed columns, of a transaction")
	f.Float64Var(&o.reads.Rate, "reads-per-second", 0, "snapshots that read, a second")
	f.IntVar(&o.reads.ReadRows, "rows-per-read", 1, "rows that such a snapshot reads at once")
	f.Float64Var(&o.table.Rows, "table-rows", 0, "rows of the table")
	f.Float64Var(&o.table.Bytes, "row-bytes", 1000, "bytes of a row's newest values, with keys and columns")
	f.IntVar(&o.table.Cells, "row-cells", 1, "cells of a row")
	f.DurationVar(&retention, "retention", 24*time.Hour, "how long garbage collection keeps versions")
	f.IntVar(&o.workload.Processes, "processes", 10, "processes that run transactions")
	f.StringVar(&o.workload.Oracle, "oracle", capacity.Direct, "direct or served")
	f.DurationVar(&rtt, "rtt", 5*time.Millisecond, "how long a request to Bigtable takes")
	f.DurationVar(&oracleRTT, "oracle-rtt", time.Millisecond, "how long a request to a served oracle takes")
	f.DurationVar(&sweep, "sweep-interval", time.Minute, "between two sweeps of an observed table for notifications")
	f.Float64Var(&o.rates.Reads, "node-reads", o.rates.Reads, "rows that a node reads a second, at 1 KB")
	f.Float64Var(&o.rates.Writes, "node-writes", o.rates.Writes, "rows that a node writes a second, at 1 KB")
	f.Float64Var(&o.rates.CPU, "cpu-target", o.rates.CPU, "average CPU utilisation to plan for, from 0 to 1")
	f.Float64Var(&o.rates.Storage, "node-storage", o.rates.Storage, "TiB of storage to plan for on a node")
	f.Float64Var(&o.rates.Node, "price-node", o.rates.Node, "US dollars for a node and an hour")
	f.Float64Var(&o.rates.GiB, "price-gib", o.rates.GiB, "US dollars for a GiB and a month")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

func (o *planOptions) checkRates() error {
	for _, r := range []struct {
		flag  string
		value float64
	}{{"node-reads", o.rates.Reads}, {"node-writes", o.rates.Writes}, {"cpu-target", o.rates.CPU}, {"node-storage", o.rates.Storage}} {
		if r.value <= 0 {
			return cli.Usagef("--%s %g: it has to be above 0", r.flag, r.value)
		}
	}
	if o.rates.CPU > 1 {
		return cli.Usagef("--cpu-target %g: it has to be at most 1", o.rates.CPU)
	}
	if o.rates.Node < 0 || o.rates.GiB < 0 {
		return cli.Usagef("--price-node and --price-gib must not be negative")
	}
	return nil
}

// read reads the workload.
func (o *planOptions) read() (capacity.Workload, error) {
	if o.file != "" {
		var text []byte
		var err error
		if o.file == "-" {
			text, err = io.ReadAll(o.streams.In)
		} else {
			text, err = os.ReadFile(o.file)
		}
		if err != nil {
			return capacity.Workload{}, cli.Usagef("--file: %w", err)
		}
		w, err := capacity.Parse(text)
		if err != nil {
			return w, cli.Usagef("--file %s: %w", o.file, err)
		}
		return w, nil
	}
	w := o.workload
	if o.writes.Rate != 0 {
		o.writes.Name, o.writes.ReadBytes = "write", o.writes.Bytes
		w.Transactions = append(w.Transactions, o.writes)
	}
	if o.reads.Rate != 0 {
		o.reads.Name, o.reads.Reads, o.reads.ReadBytes = "read", 1, o.writes.Bytes
		w.Transactions = append(w.Transactions, o.reads)
	}
	if len(w.Transactions) == 0 {
		return w, cli.Usagef("there is no workload: set --writes-per-second or --reads-per-second, or name a --file")
	}
	if o.table.Rows != 0 {
		o.table.Name, o.table.Observed = "table", o.writes.Observed > 0
		w.Tables = append(w.Tables, o.table)
	}
	return w, nil
}

func (o *planOptions) run() error {
	w, err := o.read()
	if err != nil {
		return err
	}
	p, err := capacity.New(w, o.rates)
	if err != nil {
		return cli.Usagef("the workload: %w", err)
	}
	return cli.Print(o.streams.Out, o.format, p, func(out io.Writer) error { return planText(out, p) })
}

func planText(out io.Writer, p capacity.Plan) error {
	t := cli.NewTable(out)
	cli.WriteRow(t, "TRANSACTION", "PER SECOND", "REQUESTS", "OF THEM", "ROUND TRIPS", "LATENCY", "BUSY ORACLE", "MEETS ANOTHER")
	for _, k := range p.Transactions {
		conflicts := "-"
		if k.HotLimit > 0 {
			conflicts = fmt.Sprintf("%.1f %%, limit %.0f/s a row", 100*k.Conflicts, k.HotLimit)
		}
		parts := fmt.Sprintf("%d oracle, %d read, %d prewrite, %d commit, %d secondaries", k.Oracle, k.Reads, k.Prewrites, k.Commits, k.Secondary)
		if k.Prewrites == 0 {
			parts = fmt.Sprintf("%d oracle, %d read", k.Oracle, k.Reads)
		}
		cli.WriteRow(t, k.Name, cli.Fixed(k.PerSecond, 0), strconv.Itoa(k.Requests), parts, strconv.Itoa(k.RoundTrips), cli.Fixed(k.Latency, 1)+" ms", cli.Fixed(k.BusyMS, 1)+" ms", conflicts)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t = cli.NewTable(out)
	row := func(name, format string, args ...any) { cli.WriteRow(t, name, fmt.Sprintf(format, args...)) }
	row("nodes", "%d, at %.0f %% CPU (target %.0f %%); %.2f busy, of which sweeps %.2f; storage needs %.2f", p.Nodes, 100*p.CPU, 100*p.Rates.CPU, p.CPUNodes, p.SweepNodes, p.StoreNodes)
	row("rows", "%.0f read and %.0f written a second, and %.0f conditional mutations", p.RowReads, p.RowWrites, p.Conditions)
	row("storage", "%.1f GiB before compression: %.1f live, %.1f of versions kept for %.3g h", p.StorageGiB, p.LiveGiB, p.OldGiB, p.Workload.Retention)
	row("oracle", "%s: %.0f timestamps and at most %.0f requests a second from %d processes", p.Workload.Oracle, p.Timestamps, p.OracleRequests, p.Workload.Processes)
	for _, tb := range p.Tables {
		if tb.SweepSecs > 0 {
			row("sweep of "+tb.Name, "%.1f s of one node, %.2f nodes at one every %.3g s, if Bigtable reads all of its %.1f GiB", tb.SweepSecs, tb.SweepLoad, p.Workload.Sweep, tb.GiB)
		}
	}
	row("network", "%.1f MB/s", p.Network)
	row("cost", "$%.0f a month: nodes $%.0f, storage $%.0f ($%g a node and hour, $%g a GiB and month)", p.Cost, p.NodeCost, p.StorageCost, p.Rates.Node, p.Rates.GiB)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(out, "\nwarning: %s\n", w)
	}
	return nil
}
