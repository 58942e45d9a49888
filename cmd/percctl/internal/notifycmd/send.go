package notifycmd

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

type sendOptions struct {
	session.Options
	cells []txn.Cell
}

func newSendCmd(s *cli.Streams) *cobra.Command {
	o := &sendOptions{}
	cmd := &cobra.Command{
		Use:   "send CELL…",
		Short: "Notify the observers of cells",
		Long: `Notify the observers of cells, as a commit would. On a column for weak notifications
every observer runs. On other columns an observer runs only if it has not
acknowledged the newest change of the cell.

` + cli.AsksFirst + `

Exit status 3: the column of a cell has no observer.`,
		Example: `  percctl notify send documents/d7/contents:raw --yes`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef("no cell: name at least one CELL")
			}
			return cellArgs(&o.cells)(args)
		},
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[sent]())
	o.Consent.Add(cmd)
	return cmd
}

// A sent is what notify send did, or would do.
type sent struct {
	Project  string     `json:"project"`  // Google Cloud project
	Instance string     `json:"instance"` // Bigtable instance
	DryRun   bool       `json:"dry_run"`  // whether --dry-run was given
	Cells    []sentCell `json:"cells"`    // cells that were notified
}

// A sentCell is a cell and the observers that are notified of it.
type sentCell struct {
	Cell      string   `json:"cell"`      // table, row and column
	Observers []string `json:"observers"` // observers registered for its column
	Weak      bool     `json:"weak"`      // whether the column is for weak notifications
}

func (r *sent) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: notify %s\n", r.Project, r.Instance, cli.Count(len(r.Cells), "cell"))
	for i, c := range r.Cells {
		if i == shownLetters && len(r.Cells) > shownLetters+1 {
			fmt.Fprintf(w, "  … and %d more\n", len(r.Cells)-i)
			break
		}
		fmt.Fprintf(w, "  %s, %s\n", c.Cell, toRun(c.Observers, c.Weak))
	}
	return nil
}

// toRun says what a notification does.
func toRun(observers []string, weak bool) string {
	switch {
	case len(observers) == 0:
		return "for no observer: none is registered"
	case weak:
		return "for " + strings.Join(observers, ", ")
	}
	return "for " + strings.Join(observers, ", ") + ", unless they have acknowledged the newest change"
}

func (o *sendOptions) run(ctx context.Context, s *session.Session) error {
	r := &sent{Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun, Cells: []sentCell{}}
	for _, cell := range o.cells {
		if err := s.UseCells(ctx, cell); err != nil {
			return err
		}
		col, err := observedColumn(ctx, s, cell)
		if err != nil {
			return err
		}
		r.Cells = append(r.Cells, sentCell{cell.String(), append([]string{}, col.Observers...), col.Weak})
	}
	if ok, err := o.Ask(ctx, r, r.text, fmt.Sprintf("Notify %s in %s?", cli.Count(len(o.cells), "cell"), s.Where)); !ok {
		return err
	}
	if err := changes.Notify(ctx, s.Client(), o.cells...); err != nil {
		return err
	}
	return o.Print(r, cli.Textf("notified  %d\n", len(o.cells)))
}
