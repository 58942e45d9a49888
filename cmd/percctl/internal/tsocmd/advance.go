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
// looks that much older in oracle time.
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
		Short: "Raise the oracle above a timestamp, after its row was lost or restored",
		Long: `Raise the oracle's row so that every timestamp that it hands out from then on is above
--to. Use the command after the row was lost, or after it was restored from a backup
that is older than the data in the tables. It works in both modes, and never lowers
the row: if the row is above --to already, nothing changes. A row that was lost comes
back in direct mode; percctl tso mode served switches to served mode.

TIMESTAMP is an integer as commands print it, a cell timestamp as cbt prints it, or an
RFC 3339 time. Timestamps follow the clock, so the present time is above all that were
handed out, unless the oracle was ahead of the clock. There is no way back: for a
timestamp more than one hour ahead of this machine's clock, add --ahead.

Stop the servers of a served oracle first. If the leader has not released its lease,
the command watches the row for one lease, and changes nothing if a server renews it.

` + cli.AsksFirst,
		Example: `  percctl tso advance --to 2026-11-20T05:30:00Z --dry-run
  percctl tso advance --to 1795152600000000 --yes`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return coded(advance(cmd.Context(), s, opts)) },
	}
	f := cmd.Flags()
	f.StringVar(&opts.to, "to", "", "timestamp to raise the oracle above; required")
	f.BoolVar(&opts.ahead, "ahead", false, "allow a timestamp more than one hour ahead of this machine's clock")
	f.BoolVarP(&opts.yes, "yes", "y", false, "do not ask for confirmation")
	f.BoolVar(&opts.dryRun, "dry-run", false, "show the plan and change nothing")
	f.DurationVar(&opts.timeout, "timeout", 30*time.Second, "stop after this time, which includes watching a lease, but not waiting for confirmation")
	opts.bigtable.Add(f)
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	cli.Prints(cmd, cli.ObjectOf[rowReport]())
	return cmd
}

func (o *advanceOptions) parse() (tso.Timestamp, error) {
	if o.timeout <= 0 {
		return 0, cli.Usagef("--timeout %s: it has to be positive", o.timeout)
	}
	if o.to == "" {
		return 0, cli.Usagef("no timestamp: add --to, the timestamp to raise the oracle above")
	}
	to, err := parseTimestamp(o.to)
	if err != nil {
		return 0, cli.Usagef("--to %s: %w", o.to, err)
	}
	if ahead := time.Until(to.Time()); ahead > mostAhead && !o.ahead {
		return 0, cli.Usagef("--to %s: it is %s ahead of this machine's clock, and there is no way back: check it, and add --ahead to allow it", o.to, cli.Duration(ahead))
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
		fmt.Fprintln(s.Err, "  it was never used, or was lost: it will be in direct mode")
	} else {
		fmt.Fprintf(s.Err, "  mode %s; no timestamp above %d (%s) was handed out\n", state.Mode, state.Limit, state.Limit.Time().Format(time.RFC3339))
	}
	fmt.Fprintf(s.Err, "  timestamps continue above %d (%s)", to, to.Time().Format(time.RFC3339))
	if state.Mode != "" {
		fmt.Fprintf(s.Err, ", %s later", cli.Duration(to.Time().Sub(state.Limit.Time())))
	}
	fmt.Fprintln(s.Err)
	if state.Mode == tso.ModeServed && !state.Released {
		fmt.Fprintf(s.Err, "  server %s at %s led last: watch its lease for %s, and change nothing if it is renewed\n", state.Leader, state.Address, state.Lease)
	}
}
