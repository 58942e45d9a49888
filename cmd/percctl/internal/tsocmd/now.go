package tsocmd

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
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

type nowOptions struct {
	bigtable connect.Flags
	client   clientFlags
	format   cli.Format
}

func newNowCmd(s *cli.Streams) *cobra.Command {
	opts := &nowOptions{}
	cmd := &cobra.Command{
		Use:   "now",
		Short: "Take a timestamp",
		Long: `Take a timestamp from the oracle, from --server or as the oracle's row says, in
either mode. It is above every timestamp that was handed out before.`,
		Example: `  percctl tso now
  percctl tso now --server tso-0:7070 -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return coded(now(cmd.Context(), s, opts)) },
	}
	opts.bigtable.Add(cmd.Flags())
	opts.client.add(cmd.Flags())
	cli.FormatFlag(cmd, &opts.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[timestampReport]())
	return cmd
}

func now(ctx context.Context, s *cli.Streams, opts *nowOptions) error {
	if err := opts.client.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.client.timeout)
	defer cancel()
	return opts.bigtable.Answered(ctx, func(ctx context.Context) error {
		ts, err := takeTimestamp(ctx, opts)
		if err != nil {
			return err
		}
		return printTimestamp(s, opts.format, ts)
	})
}

func takeTimestamp(ctx context.Context, opts *nowOptions) (tso.Timestamp, error) {
	if len(opts.client.servers) > 0 {
		return askOnce(ctx, opts, opts.client.servers)
	}
	table, closeTable, err := opts.bigtable.OpenMetadata(ctx)
	if err != nil {
		return 0, err
	}
	defer closeTable()
	for {
		state, err := tso.ReadRow(ctx, table, tso.RowConfig{})
		if err != nil {
			return 0, err
		}
		if state.Mode != tso.ModeServed {
			d := tso.NewDirect(table, tso.DirectConfig{})
			defer func() { _ = d.Close() }()
			return d.Timestamp(ctx)
		}
		if state.Address == "" {
			return 0, &cli.Error{Code: cli.ExitUnavailable, Err: fmt.Errorf("the oracle is in served mode and no server leads: start one with percctl tso serve")}
		}
		// Not for so long that another one could not be found.
		attempt, cancel := context.WithTimeout(ctx, max(opts.client.timeout/10, 100*time.Millisecond))
		ts, err := askOnce(attempt, opts, []string{state.Address})
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, tso.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			return ts, err
		}
		// It may have died: the row names the next leader within a lease.
	}
}

func askOnce(ctx context.Context, opts *nowOptions, servers []string) (tso.Timestamp, error) {
	client, err := opts.client.open(servers)
	if err != nil {
		return 0, err
	}
	defer func() { _ = client.Close() }()
	return client.Timestamp(ctx)
}

// A timestampReport is a timestamp and what it means.
type timestampReport struct {
	Timestamp tso.Timestamp `json:"timestamp"`               // the timestamp, as commands take it
	Time      string        `json:"time"`                    // the same as a time
	Cell      int64         `json:"cell_timestamp" unit:"-"` // the timestamp under which Bigtable stores it: 1000 times as large
	Age       float64       `json:"age_seconds"`             // time since then by this machine's clock; negative if ahead
}

func printTimestamp(s *cli.Streams, format cli.Format, ts tso.Timestamp) error {
	age := time.Since(ts.Time())
	r := timestampReport{ts, ts.Time().Format("2006-01-02T15:04:05.000000Z07:00"), int64(ts.Cell()), age.Seconds()}
	return cli.Print(s.Out, format, r, func(w io.Writer) error {
		t := cli.NewTable(w)
		cli.WriteRow(t, "timestamp", ts.String())
		cli.WriteRow(t, "time", r.Time)
		cli.WriteRow(t, "cell timestamp", fmt.Sprint(r.Cell))
		words := age.String()
		if age < -time.Microsecond {
			words = fmt.Sprintf("%s ahead of this machine's clock", -age)
		}
		cli.WriteRow(t, "age", words)
		return t.Flush()
	})
}

func newDecodeCmd(s *cli.Streams) *cobra.Command {
	var format cli.Format
	cmd := &cobra.Command{
		Use:   "decode TIMESTAMP",
		Short: "Show the time and the cell timestamp of a timestamp",
		Long: `Show which time a timestamp stands for, and the cell timestamp under which Bigtable
stores it. TIMESTAMP is an integer as commands print it, a cell timestamp as cbt
prints it, or an RFC 3339 time. The command connects to nothing.`,
		Example: `  percctl tso decode 1795152600000000
  percctl tso decode 1795152600000000000
  percctl tso decode 2026-11-20T05:30:00Z -o json`,
		Args: cli.ExactArgs(1, "one, TIMESTAMP"),
		RunE: func(_ *cobra.Command, args []string) error {
			ts, err := parseTimestamp(args[0])
			if err != nil {
				return cli.Usagef("%w", err)
			}
			return printTimestamp(s, format, ts)
		},
	}
	cli.FormatFlag(cmd, &format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[timestampReport]())
	return cmd
}

// minCell is the smallest cell timestamp of a transaction. What is below it and
// too large for a timestamp is neither.
const minCell = 1e17

// parseTimestamp also takes cell timestamps, which are 1000 times as large.
func parseTimestamp(s string) (tso.Timestamp, error) {
	ts, err := tso.ParseTimestamp(s)
	if err == nil {
		return ts, nil
	}
	if v, perr := strconv.ParseInt(s, 10, 64); perr == nil && v >= minCell {
		return tso.FromCell(bigtable.Timestamp(v)), nil
	}
	return 0, err
}
