package tsocmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

// rowOptions are those of the commands that change the oracle's row.
type rowOptions struct {
	streams  *cli.Streams
	bigtable connect.Flags
	consent  cli.Consent
	timeout  time.Duration
	format   cli.Format
}

func (o *rowOptions) add(cmd *cobra.Command, s *cli.Streams) {
	o.streams = s
	o.bigtable.Add(cmd.Flags())
	o.consent.Add(cmd)
	cmd.Flags().DurationVar(&o.timeout, "timeout", 30*time.Second, "stop after this time, which includes watching a lease, but not waiting for confirmation")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[RowReport]())
}

// A rowEdit is a change of the oracle's row.
type rowEdit struct {
	needed   func(tso.RowState) bool
	plan     func(io.Writer, tso.RowState)
	question string
	// do carries the plan out, and reports whether it changed the row: another client
	// may have changed it first.
	do func(context.Context, bigtable.TableAPI) (bool, error)
	to tso.Timestamp // for the report
}

// run prints the row, after the edit if there is one.
func (o *rowOptions) run(ctx context.Context, edit *rowEdit) error {
	if o.timeout <= 0 {
		return cli.Usagef("--timeout %s: it has to be positive", o.timeout)
	}
	return o.bigtable.Answered(ctx, func(ctx context.Context) error { return o.ask(ctx, edit) })
}

func (o *rowOptions) ask(ctx context.Context, edit *rowEdit) error {
	table, closeTable, err := o.bigtable.OpenMetadata(ctx)
	if err != nil {
		return err
	}
	defer closeTable()
	state, err := o.read(ctx, table)
	if err != nil {
		return err
	}
	if edit == nil {
		return printRow(o.streams, o.format, newRowReport(state))
	}
	changed := false
	if edit.needed(state) {
		edit.plan(o.streams.Err, state)
		if !o.consent.DryRun {
			if err := cli.Confirm(ctx, o.streams, o.consent.Yes, edit.question); err != nil {
				return err
			}
			ectx, cancel := context.WithTimeout(ctx, o.timeout)
			defer cancel()
			if changed, err = edit.do(ectx, table); err != nil {
				return err
			}
			if state, err = o.read(ctx, table); err != nil {
				return err
			}
		}
	}
	r := newRowReport(state)
	r.To, r.Changed = edit.to, &changed
	return printRow(o.streams, o.format, r)
}

func (o *rowOptions) read(ctx context.Context, table bigtable.TableAPI) (tso.RowState, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return tso.ReadRow(ctx, table, tso.RowConfig{})
}

// planLease says what happens to the last leader.
func planLease(w io.Writer, state tso.RowState) {
	fmt.Fprintf(w, "  server %s at %s led last: watch its lease for %s, and change nothing if it is renewed\n", cli.Line(state.Leader), cli.Line(state.Address), state.Lease)
}

// A RowReport is the oracle's row.
type RowReport struct {
	Mode     string        `json:"mode"`                     // `direct`, `served`, or `none` if the row was never used
	Limit    tso.Timestamp `json:"limit,omitempty"`          // no timestamp above it has been handed out
	Time     string        `json:"limit_time,omitempty"`     // `limit` as a time
	Epoch    uint64        `json:"epoch,omitempty" unit:"-"` // number of the leader's term in the row; each change of leader raises it
	Released bool          `json:"released,omitempty"`       // whether the last leader released its lease
	Leader   string        `json:"leader,omitempty"`         // name of the server that led last
	Address  string        `json:"address,omitempty"`        // its address, host:port
	Lease    float64       `json:"lease_seconds,omitempty"`  // length of its lease
	Lag      float64       `json:"lag_seconds,omitempty"`    // direct mode: how far timestamps are behind the clock; left out if nobody takes any
	To       tso.Timestamp `json:"advance_to,omitempty"`     // value of --to, for percctl tso advance
	Changed  *bool         `json:"changed,omitempty"`        // whether the command changed the row
}

func newRowReport(s tso.RowState) RowReport {
	r := RowReport{Mode: string(s.Mode), Limit: s.Limit, Epoch: s.Epoch, Released: s.Released, Leader: s.Leader, Address: s.Address, Lease: s.Lease.Seconds()}
	if r.Mode == "" {
		r.Mode = "none"
	}
	if s.Limit > 0 {
		r.Time = cli.Time(s.Limit)
	}
	return r
}

func printRow(s *cli.Streams, format cli.Format, r RowReport) error {
	return cli.Print(s.Out, format, r, r.text)
}

// text prints the row for people.
func (r RowReport) text(w io.Writer) error {
	t := cli.NewTable(w)
	cli.WriteRow(t, "mode", r.Mode)
	if r.Limit > 0 {
		cli.WriteRow(t, "highest possible", fmt.Sprintf("%d  %s", r.Limit, r.Time))
	}
	if r.Lag > 0 {
		cli.WriteRow(t, "behind the clock", seconds(r.Lag))
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
		cli.WriteRow(t, "advance to", fmt.Sprintf("%d  %s", r.To, cli.Time(r.To)))
	}
	if r.Changed != nil {
		cli.WriteRow(t, "changed", fmt.Sprint(*r.Changed))
	}
	return t.Flush()
}
