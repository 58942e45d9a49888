package notifycmd

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type parkOptions struct {
	session.Options
	cell     txn.Cell
	observer string
	reason   string
}

func newParkCmd(s *cli.Streams) *cobra.Command {
	o := &parkOptions{}
	cmd := &cobra.Command{
		Use:   "park CELL --observer ID",
		Short: "Turn a notification that an observer keeps failing on into a dead letter",
		Long: `Turn the pending notification of an observer into a dead letter, before its workers
give up. The observer does not run for this change until you replay it. Other
observers of the cell are not affected. A newer change of the cell runs the observer
as usual. A run that has already begun may still commit, and then the dead letter
has no effect.

` + cli.AsksFirst + `

Exit status 3: the observer has acknowledged the newest change.`,
		Example: `  percctl notify park documents/d7/contents:raw --observer parser`,
		Args:    cli.ExactArgs(1, "one, CELL", func(args []string) (err error) { o.cell, err = parseCell(args[0]); return err }),
		RunE:    o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[parked]())
	observerFlag(cmd, &o.Flags, &o.observer, "id of the observer; required")
	cmd.Flags().StringVar(&o.reason, "reason", "parked by percctl notify park", "error text of the dead letter if no run has failed yet")
	o.Consent.Add(cmd)
	o.Require(required(&o.observer))
	return cmd
}

// A parked is what notify park did, or would do.
type parked struct {
	Project  string        `json:"project"`        // Google Cloud project
	Instance string        `json:"instance"`       // Bigtable instance
	DryRun   bool          `json:"dry_run"`        // whether --dry-run was given
	Cell     string        `json:"cell"`           // table, row and column
	Observer string        `json:"observer"`       // id of the observer
	ChangeTS tso.Timestamp `json:"change_ts"`      // commit timestamp of the change that is parked
	Attempts int           `json:"attempts"`       // failed runs for the change
	Error    string        `json:"error"`          // error of the last failed run, or --reason
	Others   []string      `json:"others_pending"` // other observers of the cell that have not acknowledged the change
}

func (p *parked) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: 1 notification to park\n", p.Project, p.Instance)
	_, err := fmt.Fprintf(w, "  %s, observer %s, change %d, %s: %s\n", p.Cell, p.Observer, p.ChangeTS, cli.Count(p.Attempts, "attempt"), cli.Line(p.Error))
	return err
}

func (o *parkOptions) run(ctx context.Context, s *session.Session) error {
	if err := s.UseCells(ctx, o.cell); err != nil {
		return err
	}
	col, err := observedColumn(ctx, s, o.cell)
	if err != nil {
		return err
	}
	if err := session.CheckObserverOf("column "+o.cell.Table+"/"+col.Column.String(), o.observer, col); err != nil {
		return err
	}
	seen, err := observe(ctx, s, o.cell)
	if err != nil {
		return err
	}
	if !seen.Pending(o.observer) {
		return session.NotFoundf("observer %s has acknowledged the newest change of %s: nothing to park", o.observer, o.cell)
	}
	d := o.letter(seen)
	p := &parked{
		Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun,
		Cell: o.cell.String(), Observer: o.observer, ChangeTS: d.ChangeTS, Attempts: d.Attempts, Error: d.Error, Others: o.others(seen),
	}
	if ok, err := o.Ask(ctx, p, p.text, fmt.Sprintf("Park it in %s?", s.Where)); !ok {
		return err
	}
	if err := o.park(ctx, s, seen, d); err != nil {
		return err
	}
	return o.Print(p, cli.Textf("parked  1\n"))
}

// observe reads what a worker would decide by.
func observe(ctx context.Context, s *session.Session, cell txn.Cell) (*changes.Observation, error) {
	tx, err := s.Client().Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	return changes.Observe(ctx, tx, cell)
}

func (o *parkOptions) letter(seen *changes.Observation) changes.DeadLetter {
	d := changes.DeadLetter{Cell: o.cell, Observer: o.observer, ChangeTS: seen.ChangeTS, FirstTS: seen.StartTS, ParkedTS: seen.StartTS, Error: o.reason}
	if f, ok := seen.Failure(o.observer); ok {
		d.Attempts, d.FirstTS = f.Attempts, f.FirstTS
		if f.Error != "" {
			d.Error = f.Error
		}
	}
	if n := len(seen.Triggers); n > 0 {
		d.TraceParent = seen.Triggers[n-1].TraceParent
	}
	return d
}

// others returns the other observers that have not acknowledged the change.
func (o *parkOptions) others(seen *changes.Observation) []string {
	others := []string{}
	for _, id := range seen.Observers {
		if id != o.observer && seen.Pending(id) && !seen.Parked(id) {
			others = append(others, id)
		}
	}
	return others
}

// park does what a worker does after the last attempt: the letter first, so that
// nothing is lost in between; then the notification goes, or stays for the
// others, marked as given up.
func (o *parkOptions) park(ctx context.Context, s *session.Session, seen *changes.Observation, d changes.DeadLetter) error {
	if err := changes.Park(ctx, s.Client(), d); err != nil {
		return err
	}
	if len(o.others(seen)) == 0 {
		cleared := changes.Cleared{Cell: o.cell, UpTo: seen.KnownUpTo(), Only: seen.Replays(), ChangeTS: seen.KnownChange()}
		for id := range seen.Failures {
			cleared.Failures = append(cleared.Failures, id)
		}
		slices.Sort(cleared.Failures)
		return changes.ClearNotifications(ctx, s.Client(), cleared)
	}
	return changes.SetFailure(ctx, s.Client(), o.cell, o.observer, format.Failure{
		ChangeTS: d.ChangeTS, Attempts: d.Attempts, NotBefore: format.Never, FirstTS: d.FirstTS, LastTS: seen.StartTS, Error: d.Error,
	})
}
