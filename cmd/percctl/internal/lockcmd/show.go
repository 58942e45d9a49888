package lockcmd

import (
	"context"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type showOptions struct {
	session.Options
	cell txn.Cell
}

func newShowCmd(s *cli.Streams) *cobra.Command {
	o := &showOptions{}
	cmd := &cobra.Command{
		Use:   "show CELL",
		Short: "Show the lock on a cell and its transaction",
		Long: `Show the lock on a cell, its owner, the state of the transaction's primary, and
what resolving the lock would do. The command changes nothing. percctl help cells
says how to write CELL.

Exit status 3: the cell is not locked.`,
		Example: `  percctl lock show accounts/bob/bal:usd`,
		Args:    cli.ExactArgs(1, "one, CELL", session.CellArg(&o.cell)),
		RunE:    o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ListOf[inspect.Transaction](inspect.CSVHeader))
	return cmd
}

func (o *showOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.UseCells(ctx, o.cell); err != nil {
		return err
	}
	// A cell has one lock, unless what is stored is damaged.
	var groups [][]format.Lock
	for l, err := range admin.Locks(ctx, s.Client(), o.cell.Table, bigtable.RowList{o.cell.Row}) {
		if err != nil {
			return err
		}
		if l.Cell == o.cell {
			groups = append(groups, []format.Lock{l})
		}
	}
	if len(groups) == 0 {
		return session.NotFoundf("%s is not locked", o.cell)
	}
	all, err := inspect.Describe(ctx, s, groups)
	if err != nil {
		return err
	}
	list := newTransactionList(o.Streams.Out, o.Format)
	return list.All(all)
}
