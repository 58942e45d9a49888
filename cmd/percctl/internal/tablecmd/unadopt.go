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

type unadoptOptions struct {
	session.Options
	table   string
	restore bool
	wait    time.Duration
}

func newUnadoptCmd(s *cli.Streams) *cobra.Command {
	o := &unadoptOptions{}
	cmd := &cobra.Command{
		Use:   "unadopt TABLE",
		Short: "Undo table adopt, if no transaction has written",
		Long: `Undo percctl table adopt: remove the schema record and the metadata families, and
restore the garbage-collection policies that were cleared. The command does not
touch rows. If the expiry of a family has changed since the adoption, it replaces
the maximum age of its old policy; --restore-old-policies restores that unchanged.

It works only if no transaction has written to the table. To make sure, the command
reads the whole table twice: before it removes the schema record, and after --wait,
when no client uses its cached schema of the table any more. A commit between the
two stops the command, and the table stays transactional. --wait must be at least
the longest Config.SchemaMaxAge in the deployment plus three times the longest
Config.RPCTimeout. With their defaults, 1 minute and 20 seconds, these are 2 minutes.

` + cli.AsksFirst + `

After an interrupt, run the command again to continue, or percctl table adopt to
keep the table transactional.

Exit status 4: a transaction has written.`,
		Example: `  percctl table unadopt users --dry-run
  percctl table unadopt users --yes`,
		Args: cli.ExactArgs(1, "one, the name of the table", cli.Into(&o.table)),
		RunE: o.Runs(session.Bare, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[undoing]())
	cmd.ValidArgsFunction = o.CompleteTables(1)
	addRestoreOldPolicies(cmd.Flags(), &o.restore)
	cmd.Flags().DurationVar(&o.wait, "wait", admin.DefaultUndoWait, "how long clients may use their cached schema of the table")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "wait", &o.wait, 1, "positive")
	return cmd
}

// An undoing is what table unadopt did, or would do.
type undoing struct {
	Project  string  `json:"project"`      // Google Cloud project
	Instance string  `json:"instance"`     // Bigtable instance
	Table    string  `json:"table"`        // name of the table
	DryRun   bool    `json:"dry_run"`      // whether --dry-run was given
	Written  bool    `json:"written"`      // whether a transaction has written, so that the adoption cannot be undone
	Detail   string  `json:"detail"`       // where it has written
	Wait     float64 `json:"wait_seconds"` // --wait
	Undone   bool    `json:"undone"`       // whether the adoption is undone

	Policies []plainPolicy `json:"policies"` // garbage-collection policies of the plain table
}

func (u *undoing) text(w io.Writer) (err error) {
	switch {
	case u.Written:
		_, err = fmt.Fprintf(w, "table %s stays transactional: %s\n", u.Table, u.Detail)
	case u.Undone:
		_, err = fmt.Fprintf(w, "table %s is a plain one again, its rows are unchanged (project %s, instance %s)\n", u.Table, u.Project, u.Instance)
	default:
		_, err = fmt.Fprintf(w, "project %s, instance %s, table %s: no transaction has written\n  to remove: the schema record; after %v, the metadata families (%s)\n", u.Project, u.Instance, u.Table, time.Duration(u.Wait*1e9), metadataFamilies)
		for _, p := range u.Policies {
			err = errors.Join(err, p.text(w))
		}
	}
	return err
}

func (o *unadoptOptions) run(ctx context.Context, s *session.Session) error {
	cfg := admin.AdoptConfig{
		Table: o.table, MetadataTable: s.Connect.MetadataTable, Instance: s.Connect.Resource(), RestoreOldPolicies: o.restore,
		Progress: func(rows int) { s.Progress.Set("reading table %s: %s", o.table, cli.Count(rows, "row")) },
	}
	u := &undoing{Project: s.Connect.Project, Instance: s.Connect.Instance, Table: o.table, DryRun: o.Consent.DryRun, Wait: o.wait.Seconds(), Policies: []plainPolicy{}}
	print := func() error { return o.Print(u, u.text) }
	if err := s.Exists(ctx, o.table); err != nil {
		return err
	}
	policies, err := admin.CheckUndoAdoption(ctx, s.Admin, s.Bigtable, cfg)
	if err != nil {
		return o.written(u, err, print)
	}
	u.Policies = plainPolicies(policies)
	s.Progress.End()
	if ok, err := o.Ask(ctx, u, u.text, fmt.Sprintf("Undo the adoption of table %s in %s?", o.table, s.Where)); !ok {
		return err
	}
	fmt.Fprintf(o.Streams.Err, "waiting %v until no client uses its cached schema any more\n", o.wait)
	if err := admin.UndoAdoption(ctx, s.Admin, s.Bigtable, cfg, o.wait); err != nil {
		return o.written(u, err, print)
	}
	s.Progress.End()
	u.Undone = true
	return print()
}

// written prints that a transaction has written; other errors are returned.
func (o *unadoptOptions) written(u *undoing, err error, print func() error) error {
	var written *admin.WrittenError
	if !errors.As(err, &written) {
		return err
	}
	u.Written, u.Detail = true, cli.Line(written.Error())
	if perr := print(); perr != nil {
		return perr
	}
	return session.Foundf("the adoption of table %s cannot be undone: %w", o.table, admin.ErrWritten)
}
