package tsocmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

// mostAhead is how far above this machine's clock the oracle is put without
// --ahead: there is no way back, and until the clock has caught up every lock
// looks that much older in oracle time.
const mostAhead = time.Hour

type advanceOptions struct {
	rowOptions
	to    string
	ahead bool
}

func newAdvanceCmd(s *cli.Streams) *cobra.Command {
	o := &advanceOptions{}
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			to, err := o.parse()
			if err != nil {
				return err
			}
			return coded(o.run(cmd.Context(), o.advance(to)))
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", "timestamp to raise the oracle above; required")
	cmd.Flags().BoolVar(&o.ahead, "ahead", false, "allow a timestamp more than one hour ahead of this machine's clock")
	o.add(cmd, s)
	return cmd
}

func (o *advanceOptions) parse() (tso.Timestamp, error) {
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

func (o *advanceOptions) advance(to tso.Timestamp) *rowEdit {
	return &rowEdit{
		needed:   func(state tso.RowState) bool { return state.Limit < to },
		plan:     func(w io.Writer, state tso.RowState) { o.planAdvance(w, state, to) },
		question: fmt.Sprintf("Advance the oracle to %d?", to),
		do: func(ctx context.Context, table bigtable.TableAPI) (bool, error) {
			return tso.Advance(ctx, table, tso.RowConfig{}, to)
		},
		to: to,
	}
}

func (o *advanceOptions) planAdvance(w io.Writer, state tso.RowState, to tso.Timestamp) {
	fmt.Fprintf(w, "Oracle row in table %s, project %s, instance %s:\n", o.bigtable.MetadataTable, o.bigtable.Project, o.bigtable.Instance)
	if state.Mode == "" {
		fmt.Fprintln(w, "  it was never used, or was lost: it will be in direct mode")
	} else {
		fmt.Fprintf(w, "  mode %s; no timestamp above %d (%s) was handed out\n", state.Mode, state.Limit, state.Limit.Time().Format(time.RFC3339))
	}
	fmt.Fprintf(w, "  timestamps continue above %d (%s)", to, to.Time().Format(time.RFC3339))
	if state.Mode != "" {
		fmt.Fprintf(w, ", %s later", cli.Duration(to.Time().Sub(state.Limit.Time())))
	}
	fmt.Fprintln(w)
	if state.Mode == tso.ModeServed && !state.Released {
		planLease(w, state)
	}
}
