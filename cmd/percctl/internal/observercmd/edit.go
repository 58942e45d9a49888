package observercmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
)

type editOptions struct {
	streams *cli.Streams
	flags   session.Flags
	column  notify.Column // to add
	table   string        // to remove
	id      string
	weak    bool
	consent cli.Consent
	format  cli.Format
}

func (o *editOptions) add(cmd *cobra.Command) {
	o.consent.Add(cmd)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
}

func newAddCmd(s *cli.Streams) *cobra.Command {
	o := &editOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "add TABLE/FAMILY:QUALIFIER ID",
		Short: "Register an observer of a column ahead of its workers",
		Long: `Register an observer of a column, so that commits leave notifications for it before
a worker of its own runs for the first time. Workers do it by themselves when they
start. To register it again is harmless.

Clients learn of it within their Config.SchemaMaxAge (1 minute); percctl notify
backfill finds the values that were there before.`,
		Example: `  percctl observer add documents/contents:raw parser
  percctl observer add documents/index:dirty indexer --weak --yes`,
		Args: cli.ExactArgs(2, "two, TABLE/FAMILY:QUALIFIER and ID"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.column, err = session.ParseTableColumn(args[0]); err != nil {
				return err
			}
			o.id = args[1]
			return o.flags.Run(cmd.Context(), s, session.Changes, txn.Config{}, o.register)
		},
	}
	o.flags.Add(cmd, pointTimeout)
	cmd.Flags().BoolVar(&o.weak, "weak", false, "the column is for weak notifications: it can be notified, and not written")
	o.add(cmd)
	return cmd
}

// edited is what add and remove print.
type edited struct {
	Project   string   `json:"project"`
	Instance  string   `json:"instance"`
	DryRun    bool     `json:"dry_run"`
	Column    string   `json:"column"`
	Observer  string   `json:"observer"`
	Kind      string   `json:"kind"`
	Others    []string `json:"other_observers"`
	Pending   int      `json:"pending"`      // notifications it has still to see
	Dead      int      `json:"dead_letters"` // of it
	Workers   int      `json:"live_workers"` // that run it
	Unchanged bool     `json:"unchanged"`
	Plan      []string `json:"plan"`
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
	if ok, err := o.consent.Ask(ctx, o.streams, o.format, e, e.text, question); !ok {
		return err
	}
	if !e.Unchanged {
		if err := do(); err != nil {
			return err
		}
	}
	return cli.Print(o.streams.Out, o.format, e, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, done)
		return err
	})
}

func (o *editOptions) register(ctx context.Context, s *session.Session) error {
	if err := s.Use(ctx, o.column.Table); err != nil {
		return err
	}
	e := &edited{Project: o.flags.Connect.Project, Instance: o.flags.Connect.Instance, DryRun: o.consent.DryRun, Column: o.column.String(), Observer: o.id, Kind: kind(o.weak), Others: []string{}}
	col := txn.Column{Family: o.column.Family, Qualifier: o.column.Qualifier}
	observed, err := s.Client().Observed(ctx, o.column.Table)
	if err != nil {
		return err
	}
	for _, c := range observed {
		switch {
		case c.Column == col:
			e.Others = slices.DeleteFunc(slices.Clone(c.Observers), func(id string) bool { return id == o.id })
			e.Unchanged = slices.Contains(c.Observers, o.id) && c.Weak == o.weak
			if c.Weak != o.weak {
				return cli.Usagef("column %s is registered for %s notifications, by %s: it cannot be both (--weak)", o.column, kind(c.Weak), strings.Join(append(c.Observers, "table init"), ", "))
			}
		case slices.Contains(c.Observers, o.id):
			return cli.Usagef("observer %s is registered for column %s of the table: use another id, or percctl observer remove first", o.id, c.Column)
		}
	}
	if e.Unchanged {
		e.Plan = append(e.Plan, "it is registered already: nothing to do")
	} else {
		e.Plan = append(e.Plan, "commits of the column leave notifications for it, once their clients know (within a minute)")
		if len(e.Others) > 0 {
			e.Plan = append(e.Plan, "the column is observed by "+strings.Join(e.Others, ", ")+" too")
		}
		e.Plan = append(e.Plan, "values that are there already are found by percctl notify backfill "+o.column.String())
	}
	return o.carryOut(ctx, s, e, fmt.Sprintf("Register observer %s", o.id), "registered "+o.id, func() error {
		err := s.Client().RegisterObserver(ctx, o.column.Table, col, o.id, o.weak)
		if errors.Is(err, txn.ErrSchema) {
			return session.NotFoundf("%w", err)
		}
		return err
	})
}

func newRemoveCmd(s *cli.Streams) *cobra.Command {
	o := &editOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "remove TABLE ID",
		Short: "Take an observer's registration back",
		Long: `Take an observer's registration back: commits do not leave notifications for it any
more, once their clients know (within their Config.SchemaMaxAge, 1 minute). Stop
its workers first: one that starts registers it again.

The plan says what becomes of what it has still to do. Acknowledgments stay: an
observer that is registered again under the same id goes on where it stopped.
Exit status 3: the table has no such observer.`,
		Example: `  percctl observer remove documents parser --dry-run`,
		Args:    cli.ExactArgs(2, "two, TABLE and ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.table, o.id = args[0], args[1]
			return o.flags.Run(cmd.Context(), s, session.Changes, txn.Config{}, o.unregister)
		},
	}
	o.flags.Add(cmd, walkTimeout)
	o.add(cmd)
	tables, observers := o.flags.CompleteTables(1), o.flags.CompleteObservers(1)
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
	i := slices.IndexFunc(observed, func(c txn.ObservedColumn) bool { return slices.Contains(c.Observers, o.id) })
	if i < 0 {
		return session.NotFoundf("table %s has no observer %q; percctl observer list %s shows those that there are", o.table, o.id, o.table)
	}
	col := observed[i]
	e := &edited{
		Project: o.flags.Connect.Project, Instance: o.flags.Connect.Instance, DryRun: o.consent.DryRun, Column: o.table + "/" + col.Column.String(), Observer: o.id, Kind: kind(col.Weak),
		Others: slices.DeleteFunc(slices.Clone(col.Observers), func(id string) bool { return id == o.id }),
	}
	if err := o.survey(ctx, s, col, e); err != nil {
		return err
	}
	e.Plan = removal(e, len(observed) == 1)
	return o.carryOut(ctx, s, e, fmt.Sprintf("Remove observer %s", o.id), "removed "+o.id, func() error {
		_, err := s.Client().UnregisterObserver(ctx, o.table, o.id)
		return err
	})
}

// survey counts what the observer has still to do, and who runs it.
func (o *editOptions) survey(ctx context.Context, s *session.Session, col txn.ObservedColumn, e *edited) error {
	b := &observer{Observer: o.id}
	k := key{o.table, col.Column, o.id}
	want := &Want{}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return err
	}
	if _, err := want.count(ctx, s, []string{o.table}, map[key]*observer{k: b}, now); err != nil {
		return err
	}
	s.Progress.End()
	e.Pending, e.Dead, e.Workers = b.Pending, b.Dead, b.Workers
	return nil
}

// removal says what becomes of what the observer has still to do.
func removal(e *edited, lastOfTable bool) []string {
	plan := []string{"commits of the column leave no notifications for it any more, once their clients know (within a minute)"}
	pending := cli.Count(e.Pending, "notification") + " it has still to see: "
	switch {
	case e.Pending == 0:
		plan = append(plan, "it has seen everything")
	case len(e.Others) > 0:
		plan = append(plan, pending+"kept for "+strings.Join(e.Others, ", ")+" where they have still to see them, too; it is not run for them")
	case lastOfTable:
		plan = append(plan, pending+"kept without effect, for no worker scans the table any more; registered again, it sees them")
	default:
		plan = append(plan, pending+"removed, unseen, by the workers that scan the table")
	}
	if e.Dead > 0 {
		plan = append(plan, cli.Count(e.Dead, "dead letter")+": kept, to be dropped, or replayed once it is registered again")
	}
	if e.Workers > 0 {
		plan = append(plan, cli.Count(e.Workers, "live worker")+" with an observer of this id: stop it first; it does not notice, and registers the observer again when it starts")
	}
	return plan
}
