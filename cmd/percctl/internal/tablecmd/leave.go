package tablecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type leaveOptions struct {
	session.Options
	table   string
	stopped bool
	restore bool
	wait    time.Duration
}

func newLeaveCmd(s *cli.Streams) *cobra.Command {
	o := &leaveOptions{}
	cmd := &cobra.Command{
		Use:   "leave TABLE",
		Short: "Make a transactional table a plain one, with its newest values",
		Long: `Make a transactional table a plain one, with the newest committed values at the times of
their commits. Older versions, deleted and expired values and all records go. Policies
that an adoption cleared come back, and expiries become maximum ages. The plan says for
each family which policy it gets and what Bigtable deletes then: no value that transactions
read now, unless you add --restore-old-policies.

Stop all clients of the table first: the command refuses while a client of the
deployment is alive. If those clients use other tables, add --clients-stopped. Drop
indexes and remove observers before. docs/adoption.md has the steps.

` + cli.AsksFirst + `

After an interrupt, run the command again: it continues. Until it has succeeded, nothing
else may use the table. Exit status 4: the table is refused.`,
		Example: `  percctl table leave users --yes`,
		Args:    cli.ExactArgs(1, "one, the name of the table", cli.Into(&o.table)),
		RunE:    o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[leaving]())
	cmd.Flags().BoolVar(&o.stopped, "clients-stopped", false, "the clients that are alive do not use the table")
	addRestoreOldPolicies(cmd.Flags(), &o.restore)
	cmd.Flags().DurationVar(&o.wait, "wait", admin.DefaultUndoWait, "how long clients may use their cached schema of the table")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "wait", &o.wait, 1, "positive")
	return cmd
}

// A leaving is what table leave did, or would do.
type leaving struct {
	Table   string  `json:"table"`         // name of the table
	DryRun  bool    `json:"dry_run"`       // whether --dry-run was given
	Wait    float64 `json:"wait_seconds"`  // --wait
	Left    bool    `json:"left"`          // whether the table is a plain one now
	Rows    int     `json:"rows"`          // rows read
	Changed int     `json:"rows_changed"`  // rows in which transactions had written
	Cells   int     `json:"cells_written"` // values written as plain cells
	Locks   int     `json:"locks"`         // locks of dead clients that were resolved

	Policies []plainPolicy `json:"policies"` // garbage-collection policies of the plain table
}

func (l *leaving) text(w io.Writer) error {
	if l.Left {
		return cli.Textf("table %s is a plain one: %s read, %d rewritten with %s; %s resolved\n", l.Table, cli.Count(l.Rows, "row"), l.Changed, cli.Count(l.Cells, "value"), cli.Count(l.Locks, "lock"))(w)
	}
	err := cli.Textf("table %s: to remove: the schema record; after %v, all versions but the newest, and the metadata families (%s)\n", l.Table, time.Duration(l.Wait*1e9), metadataFamilies)(w)
	for _, p := range l.Policies {
		err = errors.Join(err, p.text(w))
	}
	return err
}

func (o *leaveOptions) run(ctx context.Context, s *session.Session) error {
	cfg := admin.LeaveConfig{
		Table: o.table, MetadataTable: s.Connect.MetadataTable, ClientsStopped: o.stopped, Wait: o.wait, RestoreOldPolicies: o.restore,
		Progress: func(rows int) { s.Progress.Set("rewriting table %s: %s", o.table, cli.Count(rows, "row")) },
	}
	policies, err := admin.CheckLeave(ctx, s.Admin, s.Bigtable, s.Client(), cfg)
	if errors.Is(err, admin.ErrNotLeavable) {
		return &cli.Error{Code: cli.ExitFound, Err: err}
	} else if err != nil {
		return err
	}
	l := &leaving{Table: o.table, DryRun: o.Consent.DryRun, Wait: o.wait.Seconds(), Policies: plainPolicies(policies)}
	if ok, err := o.Ask(ctx, l, l.text, fmt.Sprintf("Make table %s in %s a plain one?", o.table, s.Where)); !ok {
		return err
	}
	r, err := admin.Leave(ctx, s.Admin, s.Bigtable, s.Client(), cfg)
	s.Progress.End()
	if err != nil {
		return fmt.Errorf("%w; run the command again to continue", err)
	}
	l.Left, l.Rows, l.Changed, l.Cells, l.Locks = true, r.Rows, r.Changed, r.Cells, r.Locks
	return o.Print(l, l.text)
}
