// Package plancmd is percctl plan: the capacity that a workload needs.
package plancmd

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/admin/capacity"
)

type planOptions struct {
	streams  *cli.Streams
	file     string
	workload capacity.Workload // of the flags
	writes   capacity.Kind
	reads    capacity.Kind
	scans    capacity.Kind
	table    capacity.Table
	rates    capacity.Rates
	format   cli.Format
}

// workloadFlags cannot be given together with --file.
var workloadFlags = []string{"writes-per-second", "rows", "cells", "value-bytes", "tables", "reads-per-write", "hot-rows", "observed",
	"reads-per-second", "rows-per-read", "scans-per-second", "rows-per-scan", "table-rows", "row-bytes", "row-cells", "retention", "gc-interval", "processes", "oracle", "rtt", "oracle-rtt", "sweep-interval"}

var positive = []string{"node-reads", "node-writes", "cpu-target", "node-storage"}

// NewCmd returns the plan command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &planOptions{streams: s, rates: capacity.DefaultRates}
	var retention, interval, rtt, oracleRTT, sweep time.Duration
	cmd := &cobra.Command{
		Use:   "plan [--file WORKLOAD]",
		Short: "Plan the capacity of Cloud Bigtable for a workload: nodes, oracle, latency, cost",
		Long: `Plan what a workload of transactions needs of Cloud Bigtable: requests and round trips
per transaction, nodes, storage, the load of the oracle, the maximum rate of writes to
one row and its size, the cost of scans and of sweeps for notifications, network, latency
and monthly cost. The command connects to nothing.

Flags describe a workload of one kind of writing transactions, one kind of reading
snapshots, one kind of scans, and one table. A file, YAML or JSON, has lists of them:

  transactions:
  - {name: transfer, per_second: 2000, reads: 2, rows: 2, value_bytes: 100}
  - {name: statement, per_second: 5000, reads: 1, read_rows: 20}
  - {name: report, per_second: 5, scans: 1, scan_rows: 10000}
  tables:
  - {name: accounts, rows: 1e8, row_bytes: 500, row_cells: 4, observed: true}
  retention_hours: 24
  processes: 20
  oracle: direct

The fields are those of "workload" in the output of -o json. Observers are transactions,
too: add a kind for them, with the acknowledgment as one more cell.

The rates of a node are those that Google documents. A conditional mutation counts as
one read and one write, and scans cost by bytes. Prices are flags. docs/performance.md
lists the sources and the assumptions.`,
		Example: `  percctl plan --writes-per-second 2000 --rows 2 --reads-per-second 5000
  percctl plan --writes-per-second 500 --table-rows 1e8 --observed 1 --oracle served
  percctl plan --file workload.yaml -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.workload.Retention, o.workload.Interval, o.workload.RTT, o.workload.OracleRTT, o.workload.Sweep = retention.Hours(), interval.Hours(), rtt.Seconds()*1000, oracleRTT.Seconds()*1000, sweep.Seconds()
			for _, f := range workloadFlags {
				if o.file != "" && cmd.Flags().Changed(f) {
					return cli.Usagef("--%s and --file: use only one of them; the file describes the whole workload", f)
				}
			}
			if err := o.check(cmd.Flags()); err != nil {
				return err
			}
			return o.run()
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.file, "file", "", "file with the workload, YAML or JSON; - is standard input")
	f.Float64Var(&o.writes.Rate, "writes-per-second", 0, "writing transactions per second")
	f.IntVar(&o.writes.Rows, "rows", 1, "rows that a writing transaction writes")
	f.IntVar(&o.writes.Cells, "cells", 1, "cells that it writes in each row")
	f.Float64Var(&o.writes.Bytes, "value-bytes", 100, "size of a value in bytes, written or read")
	f.IntVar(&o.writes.Tables, "tables", 1, "number of tables that have the written rows")
	f.IntVar(&o.writes.Reads, "reads-per-write", 0, "reads of one row, one after the other, in a writing transaction")
	f.IntVar(&o.writes.Hot, "hot-rows", 0, "number of hot rows: each writing transaction writes one of them (0: none)")
	f.IntVar(&o.writes.Observed, "observed", 0, "cells in observed columns that a writing transaction writes")
	f.Float64Var(&o.reads.Rate, "reads-per-second", 0, "reading snapshots per second")
	f.IntVar(&o.reads.ReadRows, "rows-per-read", 1, "rows that a snapshot reads by their keys in one request")
	f.Float64Var(&o.scans.Rate, "scans-per-second", 0, "snapshots per second that scan a range of rows")
	f.IntVar(&o.scans.ScanRows, "rows-per-scan", 100, "rows of such a range")
	f.Float64Var(&o.table.Rows, "table-rows", 0, "rows of the table")
	f.Float64Var(&o.table.Bytes, "row-bytes", 1000, "size of the newest values of a row in bytes, with keys and columns")
	f.IntVar(&o.table.Cells, "row-cells", 1, "cells of a row")
	f.DurationVar(&retention, "retention", 24*time.Hour, "how long garbage collection keeps versions")
	f.DurationVar(&interval, "gc-interval", 6*time.Hour, "time between two runs of garbage collection")
	f.IntVar(&o.workload.Processes, "processes", 10, "processes that run transactions")
	f.StringVar(&o.workload.Oracle, "oracle", capacity.Direct, "direct or served")
	f.DurationVar(&rtt, "rtt", 5*time.Millisecond, "round trip of a request to Bigtable")
	f.DurationVar(&oracleRTT, "oracle-rtt", time.Millisecond, "round trip of a request to a served oracle")
	f.DurationVar(&sweep, "sweep-interval", 24*time.Hour, "time between two sweeps of an observed table for notifications; a minute for a table without a journal")
	f.Float64Var(&o.rates.Reads, "node-reads", o.rates.Reads, "rows of 1 KB that a node reads per second")
	f.Float64Var(&o.rates.Writes, "node-writes", o.rates.Writes, "rows of 1 KB that a node writes per second")
	f.Float64Var(&o.rates.CPU, "cpu-target", o.rates.CPU, "average CPU utilisation to plan for, from 0 to 1")
	f.Float64Var(&o.rates.Storage, "node-storage", o.rates.Storage, "storage per node to plan for, in TiB")
	f.Float64Var(&o.rates.Node, "price-node", o.rates.Node, "price of a node per hour, in US dollars")
	f.Float64Var(&o.rates.GiB, "price-gib", o.rates.GiB, "price of a GiB per month, in US dollars")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[capacity.Plan]())
	return cmd
}

func (o *planOptions) check(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		v := f.Value.String()
		wrong := f.Value.Type() != "string" && (v == "NaN" || strings.HasPrefix(v, "-"))
		if slices.Contains(positive, f.Name) && (wrong || v == "0") {
			err = cli.Usagef("--%s %s: it has to be above 0", f.Name, v)
		} else if wrong {
			err = cli.Usagef("--%s %s: it must not be negative", f.Name, v)
		}
	})
	if o.rates.CPU > 1 {
		return cli.Usagef("--cpu-target %g: it has to be at most 1", o.rates.CPU)
	}
	return err
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
	if o.scans.Rate != 0 {
		o.scans.Name, o.scans.Scans, o.scans.ReadBytes = "scan", 1, o.writes.Bytes
		w.Transactions = append(w.Transactions, o.scans)
	}
	if len(w.Transactions) == 0 {
		return w, cli.Usagef("no workload: add --writes-per-second, --reads-per-second, --scans-per-second or --file")
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
	cli.WriteRow(t, "TRANSACTION", "PER SECOND", "REQUESTS", "OF THEM", "ROUND TRIPS", "LATENCY", "BUSY ORACLE", "CONFLICTS")
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
	row("nodes", "%d, at %.0f %% CPU (target %.0f %%); %.2f busy, of which scans %.2f, sweeps %.2f, garbage collection %.2f, idle processes %.2f; storage needs %.2f", p.Nodes, 100*p.CPU, 100*p.Rates.CPU, p.CPUNodes, p.ScanNodes, p.SweepNodes, p.GCNodes, p.IdleNodes, p.StoreNodes)
	row("rows", "%.0f read and %.0f written a second, and %.0f conditional mutations; %.1f MB/s scanned", p.RowReads, p.RowWrites, p.Conditions, p.Scanned)
	row("storage", "%.1f GiB before compression: %.1f live, %.1f of versions kept for %.3g h, %.1f of removed cells", p.StorageGiB, p.LiveGiB, p.OldGiB, p.Workload.Retention, p.RemovedGiB)
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
