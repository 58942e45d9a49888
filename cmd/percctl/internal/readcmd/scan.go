package readcmd

import (
	"context"
	"fmt"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// shownValue is how many characters of a value a table shows; the other formats
// have all.
const shownValue = 80

type scanOptions struct {
	session.Options
	rows     session.RangeFlags
	table    string
	at       atFlag
	columns  []string
	families []string
	limit    int
	reverse  bool

	read  []txn.ReadOption
	named []string // families
}

// NewScanCmd returns the scan command.
func NewScanCmd(s *cli.Streams) *cobra.Command {
	o := &scanOptions{}
	cmd := &cobra.Command{
		Use:   "scan TABLE",
		Short: "Read rows, now or in the past",
		Long: `Read committed rows of a table, all at one timestamp, now or earlier. The formats
table and csv have one line per cell, the others one item per row.
` + readsResolve,
		Example: `  percctl scan accounts --prefix user/7 --limit 20
  percctl scan accounts --columns bal:usd,bal:eur --at 2026-11-20T05:30:00Z -o jsonl`,
		Args: cli.ExactArgs(1, "one, TABLE", cli.Into(&o.table)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[row](scanCSV))
	o.rows.Add(cmd)
	f := cmd.Flags()
	o.Require(o.rows.Check)
	o.at.add(cmd, &o.Options)
	f.StringArrayVar(&o.columns, "columns", nil, "only these columns, family:qualifier, separated by commas (%2C for a comma in a name)")
	f.StringArrayVar(&o.families, "families", nil, "only these families, separated by commas; with --columns, in addition to them")
	f.IntVar(&o.limit, "limit", 0, "maximum number of rows (0: all)")
	f.BoolVar(&o.reverse, "reverse", false, "read rows in descending order of their keys")
	cli.AtLeast(&o.Checks, "limit", &o.limit, 0, "positive, or 0 for all rows")
	o.Require(o.parse)
	cmd.ValidArgsFunction = o.CompleteTables(1)
	session.CompleteFlag(cmd, "families", o.CompleteFamilies(""))
	session.CompleteFlag(cmd, "columns", o.CompleteFamilies(":"))
	return cmd
}

func (o *scanOptions) parse() error {
	o.read = []txn.ReadOption{txn.Limit(o.limit)}
	if o.reverse {
		o.read = append(o.read, txn.Reverse())
	}
	for _, name := range session.List(o.columns) {
		c, err := format.ParseColumn(name)
		if err != nil {
			return cli.Usagef("--columns %s: %w", name, err)
		}
		o.named = append(o.named, c.Family)
		o.read = append(o.read, txn.Columns(c))
	}
	for _, name := range session.List(o.families) {
		o.named = append(o.named, name)
		o.read = append(o.read, txn.Families(name))
	}
	return nil
}

var scanCSV = []string{"row", "column", "commit_ts", "commit_time", "value"}

// A row is one row and its committed values.
type row struct {
	Row   string  `json:"row"`   // row key, as commands take it
	Cells []value `json:"cells"` // cells that have a value
}

func newRow(table string, r bigtable.Row) row {
	out := row{Row: session.Row(r.Key())}
	for _, f := range session.Families(r) {
		for _, item := range r[f] {
			out.Cells = append(out.Cells, newValue(table, r.Key(), item))
		}
	}
	return out
}

func (r row) csv() [][]string {
	var rows [][]string
	for _, c := range r.Cells {
		rows = append(rows, []string{c.Row, c.Column, c.CommitTS.String(), c.Commit, cli.Text(c.Value)})
	}
	return rows
}

func (r row) table() [][]string {
	var rows [][]string
	for _, c := range r.Cells {
		rows = append(rows, []string{c.Row, c.Column, c.CommitTS.String(), c.Commit, cli.Shorten(cli.Text(c.Value), shownValue)})
	}
	return rows
}

func (o *scanOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.UseFamilies(ctx, o.table, o.named...); err != nil {
		return err
	}
	snapshot, err := s.Client().Snapshot(ctx, o.at.options...)
	if err != nil {
		return err
	}
	out := &cli.List[row]{
		Out: o.Streams.Out, Format: o.Format,
		Header: scanCSV, Rows: row.csv,
		TableHeader: []string{"ROW", "COLUMN", "COMMIT_TS", "COMMIT_TIME", "VALUE"}, TableRows: row.table,
	}
	n, part := 0, func(string) float64 { return 0 }
	if !o.reverse && o.limit == 0 {
		extent := s.Extent(ctx, o.rows.Rows, o.table)
		part = func(row string) float64 { return extent.At(o.table, row) }
	}
	waiting := session.NoteWaiting(o.Streams, o.table)
	defer waiting.Stop()
	for raw, err := range snapshot.Table(o.table).ReadRows(ctx, o.rows.Rows.Set(), o.read...) {
		if err != nil {
			if eerr := out.End(); eerr != nil {
				return eerr
			}
			return fmt.Errorf("stopped after %s: %w", cli.Count(n, "row"), err)
		}
		n++
		waiting.Stop()
		if !cli.IsTerminal(o.Streams.Out) { // there, the rows are the progress
			s.Progress.Of(part(raw.Key()), n, "row")
			s.Progress.Set("%s of table %s", cli.Count(n, "row"), o.table)
		}
		if err := out.Add(newRow(o.table, raw)); err != nil {
			return err
		}
	}
	if err := out.End(); err != nil {
		return err
	}
	s.Progress.End()
	more := ""
	if n == o.limit && n > 0 {
		more = "; stopped at --limit, so there may be more"
	}
	fmt.Fprintf(o.Streams.Err, "%s at %s%s\n", cli.Count(n, "row"), cli.Stamp(snapshot.ReadTS()), more)
	return nil
}
