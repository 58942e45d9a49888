package tsocmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

// mostAhead is how far above this machine's clock the oracle is put without
// --ahead: there is no way back, and until the clock has caught up every lock
// looks as much older to those who go by oracle time.
const mostAhead = time.Hour

type advanceOptions struct {
	bigtable connect.Flags
	to       string
	ahead    bool
	yes      bool
	dryRun   bool
	timeout  time.Duration
	format   cli.Format
}

func newAdvanceCmd(s *cli.Streams) *cobra.Command {
	opts := &advanceOptions{}
	cmd := &cobra.Command{
		Use:   "advance --to TIMESTAMP",
		Short: "Move the oracle's row above a timestamp, after it was lost or restored",
		Long: `Raise the oracle's row, in whichever mode it is, so that every timestamp that is
handed out from then on is above --to: after the row was lost, or restored from a
backup that is older than what is in the tables. It is never lowered: a row that is
there already stays as it is. A row that was lost becomes one in direct mode; percctl
tso mode served switches back.

TIMESTAMP is a decimal integer, as every command prints it, a cell timestamp as cbt
prints it, or an RFC 3339 time. Timestamps follow the clock, so the present time is
above all that were handed out, unless the oracle ran ahead of it. One that is more
than an hour ahead of this machine's clock needs --ahead, for there is no way back.

Stop the servers of a served oracle first: a row that a leader did not release is
watched for one lease; if somebody renews it, nothing is changed.

The plan is shown first, and asked about on a terminal; --yes carries it out
without asking, --dry-run shows it and changes nothing.`,
		Example: `  percctl tso advance --to 2026-11-20T05:30:00Z --dry-run
  percctl tso advance --to 1795152600000000 --yes`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return coded(advance(cmd.Context(), s, opts)) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.to, "to", "", "the timestamp to move above; required")
	f.BoolVar(&opts.ahead, "ahead", false, "allow one that is more than an hour ahead of this machine's clock")
	f.BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&opts.dryRun, "dry-run", false, "show the plan, and change nothing")
	f.DurationVar(&opts.timeout, "timeout", 30*time.Second, "how long it may take, the watching of a lease included, and the answer to its question not")
	opts.bigtable.Add(f)
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	return cmd
}

func (o *advanceOptions) parse() (tso.Timestamp, error) {
	if o.timeout <= 0 {
		return 0, cli.Usagef("--timeout is %s; it has to be positive", o.timeout)
	}
	if o.to == "" {
		return 0, cli.Usagef("--to is missing: the timestamp to move the oracle above")
	}
	to, err := parseTimestamp(o.to)
	if err != nil {
		return 0, cli.Usagef("--to %s: %w", o.to, err)
	}
	if ahead := time.Until(to.Time()); ahead > mostAhead && !o.ahead {
		return 0, cli.Usagef("--to %s is %s ahead of this machine's clock, and there is no way back; --ahead allows it", o.to, cli.Duration(ahead))
	}
	return to, nil
}

func advance(ctx context.Context, s *cli.Streams, opts *advanceOptions) error {
	to, err := opts.parse()
	if err != nil {
		return err
	}
	client, err := opts.bigtable.OpenData(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	table := client.Open(opts.bigtable.MetadataTable)
	read := func() (tso.RowState, error) {
		rctx, cancel := context.WithTimeout(ctx, opts.timeout)
		defer cancel()
		return tso.ReadRow(rctx, table, tso.RowConfig{})
	}
	state, err := read()
	if err != nil {
		return err
	}
	changed := false
	if state.Limit < to {
		planAdvance(s, state, to, opts)
		if !opts.dryRun {
			if err := cli.Confirm(ctx, s, opts.yes, fmt.Sprintf("Advance the oracle to %d?", to)); err != nil {
				return err
			}
			actx, cancel := context.WithTimeout(ctx, opts.timeout)
			defer cancel()
			if changed, err = tso.Advance(actx, table, tso.RowConfig{}, to); err != nil {
				return err
			}
			if state, err = read(); err != nil {
				return err
			}
		}
	}
	r := newRowReport(state)
	r.To, r.Changed = to, &changed
	return printRow(s, opts.format, r)
}

func planAdvance(s *cli.Streams, state tso.RowState, to tso.Timestamp, opts *advanceOptions) {
	fmt.Fprintf(s.Err, "Oracle row in table %s, project %s, instance %s:\n", opts.bigtable.MetadataTable, opts.bigtable.Project, opts.bigtable.Instance)
	if state.Mode == "" {
		fmt.Fprintln(s.Err, "  it was never used, or was lost: it becomes one in direct mode")
	} else {
		fmt.Fprintf(s.Err, "  mode %s; no timestamp above %d (%s) was handed out\n", state.Mode, state.Limit, state.Limit.Time().Format(time.RFC3339))
	}
	fmt.Fprintf(s.Err, "  timestamps go on above %d (%s)", to, to.Time().Format(time.RFC3339))
	if state.Mode != "" {
		fmt.Fprintf(s.Err, ", %s later", cli.Duration(to.Time().Sub(state.Limit.Time())))
	}
	fmt.Fprintln(s.Err)
	if state.Mode == tso.ModeServed && !state.Released {
		fmt.Fprintf(s.Err, "  server %s at %s led last: its lease is watched for %s, and nothing is changed if it is renewed\n", state.Leader, state.Address, state.Lease)
	}
}
