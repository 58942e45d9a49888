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

func newModeCmd(s *cli.Streams) *cobra.Command {
	o := &rowOptions{}
	cmd := &cobra.Command{
		Use:   "mode [direct|served]",
		Short: "Show or change the mode of the oracle",
		Long: `Show whether clients take timestamps from the oracle's row (direct) or from servers
(served), or change that. Timestamps continue above the highest one of the old mode.
Processes that still use the old mode get an error that says so. Their open
transactions fail, and no data is damaged. Processes whose oracle follows the mode
(tso.Follow) only wait: docs/oracle.md says how to change without downtime.

To served: the change takes effect at once, and one of the running servers leads.
To direct: stop the servers first. If the leader has not released its lease, the
command watches the row for one lease, and changes nothing if a server renews it.

` + cli.AsksFirst,
		Example: `  percctl tso mode --project p --instance i
  percctl tso mode served --yes --project p --instance i`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return cli.Usagef("%d arguments; it takes at most one mode, direct or served", len(args))
			case len(args) == 1 && args[0] != string(tso.ModeDirect) && args[0] != string(tso.ModeServed):
				return cli.Usagef("unknown mode %q; it has to be direct or served", args[0])
			}
			return nil
		},
		ValidArgs: []string{string(tso.ModeDirect), string(tso.ModeServed)},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return coded(o.run(cmd.Context(), nil))
			}
			return coded(o.run(cmd.Context(), o.setMode(tso.Mode(args[0]))))
		},
	}
	o.add(cmd, s)
	return cmd
}

func (o *rowOptions) setMode(mode tso.Mode) *rowEdit {
	return &rowEdit{
		needed:   func(state tso.RowState) bool { return state.Mode != mode },
		plan:     func(w io.Writer, state tso.RowState) { o.planMode(w, state, mode) },
		question: fmt.Sprintf("Set the mode to %s?", mode),
		do: func(ctx context.Context, table bigtable.TableAPI) (bool, error) {
			return tso.SetMode(ctx, table, tso.RowConfig{}, mode)
		},
	}
}

func (o *rowOptions) planMode(w io.Writer, state tso.RowState, mode tso.Mode) {
	from := string(state.Mode)
	if from == "" {
		from = "none (the row was never used)"
	}
	fmt.Fprintf(w, "Oracle row in table %s, now in mode %s:\n", o.bigtable.MetadataTable, from)
	fmt.Fprintf(w, "  set the mode to %s; timestamps continue above %d (%s)\n", mode, state.Limit, state.Limit.Time().Format(time.RFC3339))
	switch {
	case mode == tso.ModeServed:
		fmt.Fprintln(w, "  clients in direct mode get an error from then on; a server has to run: percctl tso serve")
	case state.Mode == "":
	case state.Released:
		fmt.Fprintln(w, "  the last leader released its lease: the change takes effect at once; clients of servers get an error from then on")
	default:
		planLease(w, state)
	}
}
