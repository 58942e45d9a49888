package txncmd

import (
	"context"
	"fmt"
	"io"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type explainOptions struct {
	session.Options
	primary txn.Cell
	startTS tso.Timestamp
}

func newExplainCmd(s *cli.Streams) *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain PRIMARY START_TS",
		Short: "Show every cell of a transaction in all tables",
		Long: `Show what Bigtable stores of a transaction, cell by cell and in words: locks, write
records, markers, data and notify cells. The command reads all tables of the
deployment, which can take minutes, and changes nothing. It cannot show what
garbage collection or a rollback has removed.

Exit status 3: no table has a trace of the transaction.`,
		Example: `  percctl txn explain accounts/bob/bal:usd 1795152600000000`,
		Args:    cli.ExactArgs(2, transactionArgs, session.TransactionArgs(&o.primary, &o.startTS)),
		RunE:    o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[explanation]().If("with `-o json` or `-o yaml`"), cli.ListOf[cell](csvHeader).If("with `-o jsonl` or `-o csv`"))
	return cmd
}

var csvHeader = []string{"cell", "primary", "state", "words"}

// An explanation is a transaction with all its cells.
type explanation struct {
	*inspect.Transaction
	Cells []*cell `json:"cells"` // cells of the transaction, by table and row
}

// A cell is what is stored of a transaction in one cell.
type cell struct {
	Cell    string   `json:"cell"`    // table, row and column
	Primary bool     `json:"primary"` // whether it is the primary
	State   string   `json:"state"`   // `committed`, `locked`, `rolled back`, or `damaged` (the stored cells contradict each other)
	Words   string   `json:"words"`   // what the stored cells mean
	Stored  []stored `json:"stored"`  // what Bigtable stores of the transaction in this cell
}

// A stored is one version in Bigtable.
type stored struct {
	Family string            `json:"family"` // family that holds it
	TS     tso.Timestamp     `json:"ts"`     // timestamp of the version
	Time   string            `json:"time"`   // the timestamp as a time
	Kind   admin.VersionKind `json:"kind"`   // what it is
}

func (o *explainOptions) run(ctx context.Context, s *session.Session) error {
	tables := &session.Tables{All: true}
	if err := s.UseCells(ctx, o.primary); err != nil {
		return err
	}
	names, err := tables.Open(ctx, s)
	if err != nil {
		return err
	}
	status, err := admin.TransactionStatus(ctx, s.Client(), o.primary, o.startTS)
	if err != nil {
		return err
	}
	byCell := map[txn.Cell][]admin.Version{}
	var order []txn.Cell
	var locks []format.Lock
	err = tables.Each(ctx, s, names, func(table string, rows bigtable.RowSet) error {
		for v, err := range admin.TransactionVersions(ctx, s.Client(), table, rows, o.startTS, status.CommitTS) {
			if err != nil {
				return err
			}
			if byCell[v.Cell] == nil {
				order = append(order, v.Cell)
			}
			byCell[v.Cell] = append(byCell[v.Cell], v)
			if v.Lock != nil {
				locks = append(locks, *v.Lock)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.Progress.End()
	if len(order) == 0 {
		return session.NotFoundf("no trace of a transaction that started at %d in %s: check PRIMARY and START_TS", o.startTS, cli.Count(len(names), "table"))
	}
	t, err := inspect.One(ctx, s, o.primary, o.startTS, locks)
	if err != nil {
		return err
	}
	e := &explanation{Transaction: t}
	for _, c := range order {
		e.Cells = append(e.Cells, explain(c, o.primary, byCell[c]))
	}
	return o.print(e)
}

func (o *explainOptions) print(e *explanation) error {
	switch o.Format {
	case cli.JSONL, cli.CSV:
		list := &cli.List[*cell]{
			Out: o.Streams.Out, Format: o.Format,
			Header: csvHeader,
			Rows:   func(c *cell) [][]string { return [][]string{{c.Cell, fmt.Sprint(c.Primary), c.State, c.Words}} },
		}
		return list.All(e.Cells)
	}
	style := cli.StyleFor(o.Streams.Out)
	return o.Print(e, func(w io.Writer) error {
		if err := statusText(w, style, e.Transaction); err != nil {
			return err
		}
		fmt.Fprintf(w, "  cells    %d\n\n", len(e.Cells))
		table := cli.NewTable(w)
		cli.WriteRow(table, "CELL", "STATE", "WHAT IS STORED")
		for _, c := range e.Cells {
			name := c.Cell
			if c.Primary {
				name += " (primary)"
			}
			cli.WriteRow(table, name, c.State, c.Words)
		}
		return table.Flush()
	})
}
