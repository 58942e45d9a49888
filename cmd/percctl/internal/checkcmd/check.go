// Package checkcmd is percctl check: the consistency check of tables.
package checkcmd

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type options struct {
	session.Options
	tables session.Tables
}

// NewCmd returns the check command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "check TABLE… | --all",
		Short: "Check what is stored against the invariants of the protocol",
		Long: `Check what is stored in tables against the invariants of the protocol, and print one
line for each violation. Transactions may run at the same time. The command
changes nothing. A lock is not a violation, even if its owner is dead: percctl lock
list shows locks. percctl repair plan says which violations can be repaired.

Exit status 4: there are violations, or --all names a table that was deleted but still
has a schema record.`,
		Example: `  percctl check --all
  percctl check accounts --prefix user/7 -o jsonl`,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[violation](csvHeader))
	o.tables.Add(cmd, &o.Options)
	return cmd
}

var csvHeader = []string{"rule", "cell", "detail"}

// A violation is stored data that contradicts an invariant of the protocol.
type violation struct {
	Rule   admin.Rule `json:"rule"`   // the invariant that is violated
	Cell   string     `json:"cell"`   // table, row and column
	Detail string     `json:"detail"` // what is wrong, in words
}

func (o *options) run(ctx context.Context, s *session.Session) error {
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	list := &cli.List[violation]{
		Out: o.Streams.Out, Format: o.Format,
		Header: csvHeader,
		Rows:   func(v violation) [][]string { return [][]string{{string(v.Rule), v.Cell, v.Detail}} },
	}
	count := 0
	err = o.tables.Each(ctx, s, tables, func(table string, rows bigtable.RowSet) error {
		for v, err := range admin.Check(ctx, s.Client(), table, rows) {
			if err != nil {
				return err
			}
			count++
			s.Progress.End()
			found := violation{v.Rule, v.Cell.String(), cli.Line(v.Detail)}
			if err := o.print(list, found); err != nil {
				return err
			}
		}
		return nil
	})
	s.Progress.End()
	if o.Format != cli.Table {
		if eerr := list.End(); eerr != nil {
			return eerr
		}
	}
	in := cli.Count(len(tables), "table")
	switch {
	case err != nil:
		fmt.Fprintf(o.Streams.Err, "stopped after %s\n", cli.Count(count, "violation"))
		return err
	case count > 0:
		return session.Foundf("%s in %s", cli.Count(count, "violation"), in)
	}
	fmt.Fprintf(o.Streams.Err, "0 violations in %s\n", in)
	if n := len(s.LeftOut); n > 0 {
		return session.Foundf("%s not checked, because only the schema record exists: see the warning", cli.Count(n, "table"))
	}
	return nil
}

func (o *options) print(list *cli.List[violation], v violation) error {
	if o.Format != cli.Table {
		return list.Add(v)
	}
	_, err := fmt.Fprintf(o.Streams.Out, "%s: %s: %s\n", v.Cell, cli.StyleFor(o.Streams.Out).Bad(string(v.Rule)), v.Detail)
	return err
}
