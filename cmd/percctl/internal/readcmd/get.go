package readcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
)

type getOptions struct {
	session.Options
	cell txn.Cell
	at   atFlag
	raw  bool
}

// NewGetCmd returns the get command.
func NewGetCmd(s *cli.Streams) *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:   "get CELL",
		Short: "Read one cell, now or in the past",
		Long: `Read the committed value of a cell, now or at an earlier timestamp. A value that is
not printable text is quoted; --raw writes its bytes as they are. percctl help cells
says how to write CELL.

Exit status 3: the cell has no value.
` + readsResolve,
		Example: `  percctl get accounts/bob/bal:usd
  percctl get accounts/bob/bal:usd --at 2026-11-20T05:30:00Z -o json`,
		Args: cli.ExactArgs(1, "one, CELL", session.CellArg(&o.cell)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[value]())
	o.at.add(cmd, &o.Options)
	cmd.Flags().BoolVar(&o.raw, "raw", false, "write only the bytes of the value")
	o.Require(func() error {
		if o.raw && o.Format != cli.Table {
			return cli.Usagef("--raw does not go with --output %s", o.Format)
		}
		return nil
	})
	return cmd
}

// mostColumns is how many columns of a row like reads.
const mostColumns = 200

// like is the end of the message that the cell has no value: which cells of the row and
// family, as far as it reads them, have a name like it.
func (o *getOptions) like(ctx context.Context, at *txn.Snapshot) string {
	row, err := at.Table(o.cell.Table).ReadRow(ctx, o.cell.Row, txn.Families(o.cell.Family), txn.KeysOnly(), txn.CellsPerRow(mostColumns))
	if err != nil {
		return "" // that there is no value is known
	}
	var names []string
	for _, item := range row[o.cell.Family] {
		names = append(names, newValue(o.cell.Table, o.cell.Row, item).Column)
	}
	return cli.DidYouMean(o.cell.Column().String(), names...)
}

func (o *getOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.UseCells(ctx, o.cell); err != nil {
		return err
	}
	snapshot, err := s.Client().Snapshot(ctx, o.at.options...)
	if err != nil {
		return err
	}
	defer session.NoteWaiting(o.Streams, o.cell.Table).Stop()
	row, err := snapshot.Table(o.cell.Table).ReadRow(ctx, o.cell.Row, txn.Columns(o.cell.Column()))
	if err != nil {
		return err
	}
	items := row[o.cell.Family]
	if len(items) == 0 {
		return session.NotFoundf("%s has no value at %s%s", o.cell, cli.Stamp(snapshot.ReadTS()), o.like(ctx, snapshot))
	}
	if o.raw {
		_, err := cli.Raw(o.Streams.Out).Write(items[0].Value)
		return err
	}
	v := newValue(o.cell.Table, o.cell.Row, items[0])
	return o.Print(v, cli.Textf("%v\n", cli.Text(v.Value)))
}
