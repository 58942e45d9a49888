package notifycmd

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
)

type backfillOptions struct {
	session.Options
	rows   session.RangeFlags
	table  string
	column txn.Column
}

func newBackfillCmd(s *cli.Streams) *cobra.Command {
	o := &backfillOptions{}
	cmd := &cobra.Command{
		Use:   "backfill TABLE/FAMILY:QUALIFIER",
		Short: "Notify every cell of a column that has a value",
		Long: `Notify the observers of every cell of a column that has a value. Use it after you
have registered an observer for a column with data. Run it at least one
minute after the registration: until then, clients may commit changes without
notifying the new observer. An observer that has acknowledged the newest change of a
cell does not run again.

` + cli.AsksFirst + `

With --dry-run, the command also counts the cells. To run the command twice is
harmless. After an interrupt, the message names the row with which --start continues.

Exit status 3: the column has no observer.`,
		Example: `  percctl notify backfill documents/contents:raw --dry-run
  percctl notify backfill documents/contents:raw --prefix com.example/ --yes`,
		Args: cli.ExactArgs(1, "one, TABLE/FAMILY:QUALIFIER", session.ColumnArg(&o.table, &o.column)),
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[backfilled]())
	o.rows.Add(cmd)
	o.Require(o.rows.Check)
	o.Consent.Add(cmd)
	cmd.ValidArgsFunction = o.CompleteColumns
	return cmd
}

// A backfilled is what notify backfill did, or would do.
type backfilled struct {
	Project   string   `json:"project"`            // Google Cloud project
	Instance  string   `json:"instance"`           // Bigtable instance
	DryRun    bool     `json:"dry_run"`            // whether --dry-run was given
	Column    string   `json:"column"`             // table, family and qualifier
	Observers []string `json:"observers"`          // observers registered for the column
	Weak      bool     `json:"weak"`               // whether the column is for weak notifications
	Cells     int      `json:"cells"`              // cells that were notified; with --dry-run, cells to notify
	LastRow   string   `json:"last_row,omitempty"` // last row that was notified, if an error or interrupt ended the command
}

func (o *backfillOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.Use(ctx, o.table); err != nil {
		return err
	}
	col, err := session.Observed(ctx, s, o.table, o.column)
	if err != nil {
		return err
	}
	r := o.rows.Rows
	b := &backfilled{
		Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun,
		Column: o.table + "/" + o.column.String(), Observers: append([]string{}, col.Observers...), Weak: col.Weak,
	}
	what := "all cells with a value"
	if o.Consent.DryRun {
		if b.Cells, err = o.count(ctx, s, r.Set()); err != nil {
			return err
		}
		what = cli.Count(b.Cells, "cell")
	}
	if ok, err := o.Ask(ctx, b, cli.Textf("project %s, instance %s: notify %s of column %s, %s\n", b.Project, b.Instance, what, b.Column, toRun(b.Observers, b.Weak)), fmt.Sprintf("Notify them in %s?", s.Where)); !ok {
		return err
	}
	extent := s.Extent(ctx, r, o.table)
	progress := func(cells int, row string) {
		b.LastRow = session.Row(row)
		s.Progress.Of(extent.At(o.table, row), cells, "cell")
		s.Progress.Set("%s notified, up to row %s", cli.Count(cells, "cell"), b.LastRow)
	}
	b.Cells, err = notify.Backfill(ctx, s.Client(), notify.BackfillConfig{Table: o.table, Column: o.column, Rows: r.Set(), Progress: progress})
	s.Progress.End()
	if err == nil {
		b.LastRow = ""
	}
	if perr := o.Print(b, cli.Textf("notified  %d\n", b.Cells)); perr != nil {
		return perr
	}
	return b.verdict(ctx, r, err)
}

// verdict says how to continue after an error.
func (b *backfilled) verdict(ctx context.Context, r session.Range, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, txn.ErrLimit) {
		return fmt.Errorf("%s notified; %w", cli.Count(b.Cells, "cell"), err)
	}
	goOn := "to continue, run the command again"
	if b.LastRow != "" {
		goOn += " with --start " + b.LastRow
		if r.End != "" {
			goOn += " --end " + session.Row(r.End)
		}
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return fmt.Errorf("interrupted after %s; %s", cli.Count(b.Cells, "cell"), goOn)
	}
	return fmt.Errorf("%s notified; %s: %w", cli.Count(b.Cells, "cell"), goOn, err)
}

func (o *backfillOptions) count(ctx context.Context, s *session.Session, rows bigtable.RowSet) (n int, err error) {
	snapshot, err := s.Client().Snapshot(ctx)
	if err != nil {
		return 0, err
	}
	for row, err := range snapshot.Table(o.table).ReadRows(ctx, rows, notify.Watched(o.column), txn.KeysOnly()) {
		if err != nil {
			return n, err
		}
		n += len(row[o.column.RealFamily()])
		s.Progress.Set("%s so far", cli.Count(n, "cell"))
	}
	return n, nil
}
