package tsocmd

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

type modeOptions struct {
	bigtable connect.Flags
	mode     string // empty: show
	yes      bool
	dryRun   bool
	timeout  time.Duration
	format   cli.Format
}

func newModeCmd(s *cli.Streams) *cobra.Command {
	opts := &modeOptions{}
	cmd := &cobra.Command{
		Use:   "mode [direct|served]",
		Short: "Show or change the mode of the oracle",
		Long: `Show whether clients take timestamps from the oracle's row (direct) or from servers
(served), or change that. Timestamps continue above the highest one of the old mode.
Processes that still use the old mode get an error that says so. Their open
transactions fail, and no data is damaged.

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
			opts.mode = strings.Join(args, "")
			return coded(mode(cmd.Context(), s, opts))
		},
	}
	cmd.Flags().BoolVar(&opts.yes, "yes", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&opts.dryRun, "dry-run", false, "show the plan and change nothing")
	cmd.Flags().DurationVar(&opts.timeout, "timeout", 30*time.Second, "stop after this time, which includes watching a lease, but not waiting for confirmation")
	opts.bigtable.Add(cmd.Flags())
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	cli.Prints(cmd, cli.ObjectOf[rowReport]())
	return cmd
}

// A rowReport is the oracle's row.
type rowReport struct {
	Mode     string        `json:"mode"`                     // `direct`, `served`, or `none` if the row was never used
	Limit    tso.Timestamp `json:"limit,omitempty"`          // no timestamp above it has been handed out
	Time     string        `json:"limit_time,omitempty"`     // `limit` as a time
	Epoch    uint64        `json:"epoch,omitempty" unit:"-"` // number of the leader's term in the row; each change of leader raises it
	Released bool          `json:"released,omitempty"`       // whether the last leader released its lease
	Leader   string        `json:"leader,omitempty"`         // name of the server that led last
	Address  string        `json:"address,omitempty"`        // its address, host:port
	Lease    float64       `json:"lease_seconds,omitempty"`  // length of its lease
	To       tso.Timestamp `json:"advance_to,omitempty"`     // value of --to, for percctl tso advance
	Changed  *bool         `json:"changed,omitempty"`        // whether the command changed the row
}

func newRowReport(s tso.RowState) rowReport {
	r := rowReport{Mode: string(s.Mode), Limit: s.Limit, Epoch: s.Epoch, Released: s.Released, Leader: s.Leader, Address: s.Address, Lease: s.Lease.Seconds()}
	if r.Mode == "" {
		r.Mode = "none"
	}
	if s.Limit > 0 {
		r.Time = s.Limit.Time().Format(time.RFC3339Nano)
	}
	return r
}

func mode(ctx context.Context, s *cli.Streams, opts *modeOptions) error {
	if opts.timeout <= 0 {
		return cli.Usagef("--timeout %s: it has to be positive", opts.timeout)
	}
	client, err := opts.bigtable.OpenData(ctx)
	if err != nil {
		return err
	}
	table := client.Open(opts.bigtable.MetadataTable)
	defer func() { _ = client.Close() }()
	state, err := readMode(ctx, table, opts)
	if err != nil {
		return err
	}
	r := newRowReport(state)
	if opts.mode == "" {
		return printRow(s, opts.format, r)
	}
	changed := false
	if state.Mode != tso.Mode(opts.mode) {
		plan(s, state, opts)
		if !opts.dryRun {
			if err := cli.Confirm(ctx, s, opts.yes, fmt.Sprintf("Set the mode to %s?", opts.mode)); err != nil {
				return err
			}
			if changed, r, err = setMode(ctx, table, opts); err != nil {
				return err
			}
		}
	}
	r.Changed = &changed
	return printRow(s, opts.format, r)
}

func readMode(ctx context.Context, table bigtable.TableAPI, opts *modeOptions) (tso.RowState, error) {
	ctx, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	return tso.ReadRow(ctx, table, tso.RowConfig{})
}

// setMode carries the plan out. Whether it still fits is for the row to say.
func setMode(ctx context.Context, table bigtable.TableAPI, opts *modeOptions) (changed bool, r rowReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, opts.timeout)
	defer cancel()
	if changed, err = tso.SetMode(ctx, table, tso.RowConfig{}, tso.Mode(opts.mode)); err != nil {
		return changed, r, err
	}
	state, err := tso.ReadRow(ctx, table, tso.RowConfig{})
	return changed, newRowReport(state), err
}

func plan(s *cli.Streams, state tso.RowState, opts *modeOptions) {
	from := string(state.Mode)
	if from == "" {
		from = "none (the row was never used)"
	}
	fmt.Fprintf(s.Err, "Oracle row in table %s, now in mode %s:\n", opts.bigtable.MetadataTable, from)
	fmt.Fprintf(s.Err, "  set the mode to %s; timestamps continue above %d (%s)\n", opts.mode, state.Limit, state.Limit.Time().Format(time.RFC3339))
	switch {
	case opts.mode == string(tso.ModeServed):
		fmt.Fprintln(s.Err, "  clients in direct mode get an error from then on; a server has to run: percctl tso serve")
	case state.Mode == "":
	case state.Released:
		fmt.Fprintln(s.Err, "  the last leader released its lease: the change takes effect at once; clients of servers get an error from then on")
	default:
		fmt.Fprintf(s.Err, "  server %s at %s led last: watch its lease for %s, and change nothing if it is renewed\n", state.Leader, state.Address, state.Lease)
	}
}

func printRow(s *cli.Streams, format cli.Format, r rowReport) error {
	if format == cli.JSON {
		return json.NewEncoder(s.Out).Encode(r)
	}
	t := cli.NewTable(s.Out)
	cli.WriteRow(t, "mode", r.Mode)
	if r.Limit > 0 {
		cli.WriteRow(t, "highest possible", fmt.Sprintf("%d  %s", r.Limit, r.Time))
	}
	if r.Mode == string(tso.ModeServed) {
		cli.WriteRow(t, "epoch", fmt.Sprint(r.Epoch))
		if r.Released {
			cli.WriteRow(t, "leader", "none: the lease is released, any server may lead at once")
		} else {
			cli.WriteRow(t, "leader", fmt.Sprintf("%s at %s, lease of %gs", r.Leader, r.Address, r.Lease))
		}
	}
	if r.To != 0 {
		cli.WriteRow(t, "advance to", fmt.Sprintf("%d  %s", r.To, r.To.Time().Format(time.RFC3339Nano)))
	}
	if r.Changed != nil {
		cli.WriteRow(t, "changed", fmt.Sprint(*r.Changed))
	}
	return t.Flush()
}
