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
	"github.com/percolator-bigtable/percolator/txn"
)

type unadoptOptions struct {
	streams *cli.Streams
	flags   session.Flags
	table   string
	wait    time.Duration
	consent cli.Consent
	format  cli.Format
}

func newUnadoptCmd(s *cli.Streams) *cobra.Command {
	o := &unadoptOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "unadopt TABLE",
		Short: "Undo table adopt, while no transaction has written",
		Long: `Undo percctl table adopt: remove the schema record and the metadata families, and
bring back the garbage-collection policies that were cleared. Rows are not
touched.

It works only while no transaction has written to the table, and proves that by
looking through all of it, twice: before the schema record goes, and after --wait,
when no client uses the table any more that knew it from before. A commit in
between stops it, and the table stays transactional. --wait has to be at least the
longest Config.SchemaMaxAge in the deployment and three times the longest
Config.RPCTimeout; with their defaults, two minutes.

Interrupted while it waits, it goes on when it is run again; percctl table adopt
takes the table back. Exit status 4: a transaction has written.`,
		Example: `  percctl table unadopt users --dry-run
  percctl table unadopt users --yes`,
		Args: cli.ExactArgs(1, "one, the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.table = args[0]
			if o.wait <= 0 {
				return cli.Usagef("--wait %v: it has to be positive", o.wait)
			}
			return o.flags.RunBare(cmd.Context(), s, o.run)
		},
	}
	o.flags.Add(cmd, 0)
	cmd.Flags().DurationVar(&o.wait, "wait", txn.DefaultUndoWait, "how long clients may use a table without looking at its schema again")
	o.consent.Add(cmd)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// An undoing is what percctl table unadopt prints.
type undoing struct {
	Project  string  `json:"project"`
	Instance string  `json:"instance"`
	Table    string  `json:"table"`
	DryRun   bool    `json:"dry_run"`
	Written  bool    `json:"written"` // by a transaction: it cannot be undone
	Detail   string  `json:"detail"`
	Wait     float64 `json:"wait_seconds"`
	Undone   bool    `json:"undone"`
}

func (u *undoing) text(w io.Writer) (err error) {
	switch {
	case u.Written:
		_, err = fmt.Fprintf(w, "table %s stays transactional: %s\n", u.Table, u.Detail)
	case u.Undone:
		_, err = fmt.Fprintf(w, "table %s is as it was before it was adopted (project %s, instance %s)\n", u.Table, u.Project, u.Instance)
	default:
		_, err = fmt.Fprintf(w, "project %s, instance %s, table %s: no transaction has written\n  to be removed: the schema record; after %v, the metadata families (%s)\n", u.Project, u.Instance, u.Table, time.Duration(u.Wait*1e9), metadataFamilies)
	}
	return err
}

func (o *unadoptOptions) run(ctx context.Context, s *session.Session) error {
	cfg := txn.AdoptConfig{
		Table: o.table, MetadataTable: s.Connect.MetadataTable, Instance: s.Connect.Resource(),
		Progress: func(rows int) { s.Progress.Set("looking through table %s: %s", o.table, cli.Count(rows, "row")) },
	}
	u := &undoing{Project: s.Connect.Project, Instance: s.Connect.Instance, Table: o.table, DryRun: o.consent.DryRun, Wait: o.wait.Seconds()}
	print := func() error { return cli.Print(o.streams.Out, o.format, u, u.text) }
	if err := txn.CheckUndoAdoption(ctx, s.Admin, s.Bigtable, cfg); err != nil {
		return o.written(u, err, print)
	}
	s.Progress.End()
	if ok, err := o.consent.Ask(ctx, o.streams, o.format, u, u.text, fmt.Sprintf("Undo the adoption of table %s in %s?", o.table, s.Where)); !ok {
		return err
	}
	fmt.Fprintf(o.streams.Err, "waiting %v until no client uses the table any more\n", o.wait)
	if err := txn.UndoAdoption(ctx, s.Admin, s.Bigtable, cfg, o.wait); err != nil {
		return o.written(u, err, print)
	}
	s.Progress.End()
	u.Undone = true
	return print()
}

// written prints that a transaction has written; other errors are returned.
func (o *unadoptOptions) written(u *undoing, err error, print func() error) error {
	var written *txn.WrittenError
	if !errors.As(err, &written) {
		return err
	}
	u.Written, u.Detail = true, cli.Line(written.Error())
	if perr := print(); perr != nil {
		return perr
	}
	return session.Foundf("the adoption of table %s cannot be undone: %w", o.table, txn.ErrWritten)
}
