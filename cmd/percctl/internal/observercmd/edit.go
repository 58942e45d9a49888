package observercmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

type editOptions struct {
	session.Options
	table  string
	column txn.Column // to add
	id     string
	weak   bool
}

func (o *editOptions) add(cmd *cobra.Command) {
	o.Consent.Add(cmd)
	cli.FormatFlag(cmd, &o.Format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[edited]())
}

func newAddCmd(s *cli.Streams) *cobra.Command {
	o := &editOptions{}
	cmd := &cobra.Command{
		Use:   "add TABLE/FAMILY:QUALIFIER ID",
		Short: "Register an observer of a column before its workers start",
		Long: `Register an observer of a column, or of all whose qualifiers begin so (FAMILY*:PREFIX),
before its workers start, so that commits already leave notifications for it.

Clients notice the registration within a minute. For values that are already there,
run percctl notify backfill afterwards.

` + cli.AsksFirst,
		Example: `  percctl observer add documents/contents:raw parser
  percctl observer add documents/index:dirty indexer --weak --yes`,
		Args: cli.ExactArgs(2, "two, TABLE/FAMILY:QUALIFIER and ID", cli.Into(&o.table, &o.id), session.ColumnArg(&o.table, &o.column)),
		RunE: o.Runs(session.Changes, o.register),
	}
	o.Setup(cmd, s, session.PointTimeout)
	cmd.Flags().BoolVar(&o.weak, "weak", false, "the column is for weak notifications: clients notify it, and cannot write it")
	o.add(cmd)
	return cmd
}

// An edited is what observer add or observer remove did, or would do.
type edited struct {
	Project   string   `json:"project"`         // Google Cloud project
	Instance  string   `json:"instance"`        // Bigtable instance
	DryRun    bool     `json:"dry_run"`         // whether --dry-run was given
	Column    string   `json:"column"`          // table, family and qualifier
	Observer  string   `json:"observer"`        // id of the observer
	Kind      string   `json:"kind"`            // `strong` or `weak`: which notifications the column is for
	Others    []string `json:"other_observers"` // other observers of the column
	Pending   int      `json:"pending"`         // notifications that the observer has not acknowledged
	Dead      int      `json:"dead_letters"`    // its dead letters
	Workers   int      `json:"live_workers"`    // live workers that run it
	Unchanged bool     `json:"unchanged"`       // whether there is nothing to do: it is registered already
	Plan      []string `json:"plan"`            // what happens, in sentences
}

func (e *edited) text(w io.Writer) error {
	fmt.Fprintf(w, "project %s, instance %s: observer %s of column %s (%s)\n", e.Project, e.Instance, e.Observer, e.Column, e.Kind)
	for _, line := range e.Plan {
		fmt.Fprintf(w, "  %s\n", line)
	}
	return nil
}

// carryOut shows the plan, asks, and does it.
func (o *editOptions) carryOut(ctx context.Context, s *session.Session, e *edited, question, done string, do func() error) error {
	question += " in " + s.Where + "?"
	if e.Unchanged {
		question = ""
	}
	if ok, err := o.Ask(ctx, e, e.text, question); !ok {
		return err
	}
	if !e.Unchanged {
		if err := do(); err != nil {
			return err
		}
	}
	return o.Print(e, cli.Textf("%v\n", done))
}

func (o *editOptions) register(ctx context.Context, s *session.Session) error {
	if err := changes.CheckRegistration(o.table, o.column, o.id); err != nil {
		return err
	}
	if err := s.UseFamilies(ctx, o.table, o.column.RealFamily()); err != nil {
		return err
	}
	e := &edited{Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun, Column: o.table + "/" + o.column.String(), Observer: o.id, Kind: kind(o.weak), Others: []string{}}
	observed, err := changes.ObservedColumns(ctx, s.Client(), o.table)
	if err != nil {
		return err
	}
	for _, c := range observed {
		switch {
		case c.Column == o.column:
			e.Others = slices.DeleteFunc(slices.Clone(c.Observers), func(id string) bool { return id == o.id })
			e.Unchanged = slices.Contains(c.Observers, o.id) && c.Weak == o.weak
			if c.Weak != o.weak {
				return cli.Usagef("column %s is registered for %s notifications, by %s: a column cannot have both kinds (--weak)", e.Column, kind(c.Weak), strings.Join(append(c.Observers, "table init"), ", "))
			}
		case slices.Contains(c.Observers, o.id):
			return cli.Usagef("observer %s is registered for column %s of the table: use another id, or run percctl observer remove first", o.id, c.Column)
		}
	}
	if e.Unchanged {
		e.Plan = append(e.Plan, "it is already registered: nothing to do")
	} else {
		e.Plan = append(e.Plan, "commits to the column leave notifications for it, once their clients have noticed (within a minute)")
		if len(e.Others) > 0 {
			e.Plan = append(e.Plan, "the column has other observers: "+strings.Join(e.Others, ", "))
		}
		e.Plan = append(e.Plan, "for values that are already there, run percctl notify backfill "+e.Column)
	}
	return o.carryOut(ctx, s, e, fmt.Sprintf("Register observer %s", o.id), "registered "+o.id, func() error {
		return changes.RegisterObserver(ctx, s.Client(), o.table, o.column, o.id, o.weak)
	})
}

func newRemoveCmd(s *cli.Streams) *cobra.Command {
	o := &editOptions{}
	cmd := &cobra.Command{
		Use:   "remove TABLE ID",
		Short: "Remove the registration of an observer",
		Long: `Remove the registration of an observer. Clients notice within a minute,
and then their commits leave no notifications for it. Stop its workers first: a worker that starts registers the observer again.

The plan says what happens to its pending notifications and dead letters. Its
acknowledgments stay: if you register it again with the same id, it continues where
it stopped.

` + cli.AsksFirst + `

Exit status 3: the table has no such observer.`,
		Example: `  percctl observer remove documents parser --dry-run`,
		Args:    cli.ExactArgs(2, "two, TABLE and ID", cli.Into(&o.table, &o.id)),
		RunE:    o.Runs(session.Changes, o.unregister),
	}
	o.Setup(cmd, s, session.WalkTimeout)
	o.add(cmd)
	tables, observers := o.CompleteTables(1), o.CompleteObservers(1)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return tables(cmd, args, word)
		}
		return observers(cmd, args, word)
	}
	return cmd
}

func (o *editOptions) unregister(ctx context.Context, s *session.Session) error {
	observed, err := session.AllObserved(ctx, s, o.table)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(observed, func(c changes.ObservedColumn) bool { return slices.Contains(c.Observers, o.id) })
	if i < 0 {
		return session.CheckObserverOf("table "+o.table, o.id, observed...)
	}
	col := observed[i]
	e := &edited{
		Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun, Column: o.table + "/" + col.Column.String(), Observer: o.id, Kind: kind(col.Weak),
		Others: slices.DeleteFunc(slices.Clone(col.Observers), func(id string) bool { return id == o.id }),
	}
	if err := o.survey(ctx, s, col, e); err != nil {
		return err
	}
	e.Plan = removal(e, len(observed) == 1)
	return o.carryOut(ctx, s, e, fmt.Sprintf("Remove observer %s", o.id), "removed "+o.id, func() error {
		_, err := changes.UnregisterObserver(ctx, s.Client(), o.table, o.id)
		return err
	})
}

// survey counts what is pending for the observer, and its workers.
func (o *editOptions) survey(ctx context.Context, s *session.Session, col changes.ObservedColumn, e *edited) error {
	col.Observers = []string{o.id}
	l := NewBacklog([]changes.ObservedColumn{col})
	if err := l.read(ctx, s, session.Tables{}, []string{o.table}); err != nil {
		return err
	}
	workers, err := admin.Workers(ctx, s.Client())
	if err != nil {
		return err
	}
	s.Progress.End()
	b := l.List(workers, 0)[0]
	e.Pending, e.Dead, e.Workers = b.Pending, b.Dead, b.Workers
	return nil
}

// removal says what happens to the pending notifications of the observer.
func removal(e *edited, lastOfTable bool) []string {
	plan := []string{"commits to the column leave no notifications for it, once their clients have noticed (within a minute)"}
	pending := cli.Count(e.Pending, "notification") + " it has not acknowledged: "
	switch {
	case e.Pending == 0:
		plan = append(plan, "it has acknowledged every change")
	case len(e.Others) > 0:
		plan = append(plan, pending+"they stay for "+strings.Join(e.Others, ", ")+"; the removed observer does not run for them")
	case lastOfTable:
		plan = append(plan, pending+"they stay without effect, because no worker scans the table; if you register it again, it runs for them")
	default:
		plan = append(plan, pending+"workers that scan the table remove them, except those that other observers still need")
	}
	if e.Dead > 0 {
		plan = append(plan, cli.Count(e.Dead, "dead letter")+": they stay; drop them, or register it again and replay them")
	}
	if e.Workers > 0 {
		plan = append(plan, cli.Count(e.Workers, "live worker")+" with an observer of this id: stop it first, because it does not notice, and registers the observer again when it restarts")
	}
	return plan
}
