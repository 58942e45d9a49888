package indexcmd

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
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/index"
	"github.com/percolator-bigtable/percolator/txn/jobs"
)

type createOptions struct {
	options
	columns []string
	entries string
	unique  bool
	want    found // what the flags say
}

func newCreateCmd(s *cli.Streams) *cobra.Command {
	o := &createOptions{}
	cmd := &cobra.Command{
		Use:   "create TABLE NAME",
		Short: "Build an index while its table is in use",
		Long: `Build an index of a table while services read and write it. First deploy services
that keep indexes of this --entries table (Indexes.Keep of Go package txn/index). Other
clients can no longer write the columns, once they have noticed the index, which
takes a minute.

The command waits 70 s for commits that do not know the index, and then adds the
entries of all rows. If it is interrupted, run it again with the same arguments or
with none of the flags: it continues. A service can continue it as well.

` + cli.AsksFirst + `

Exit status 4: two rows have the same key of a unique index. Change one of them and
run the command again, or drop the index.`,
		Example: `  percctl index create users users-by-email --column profile:email --unique --entries indexes/e
  percctl index create users users-by-email --yes  # continues`,
		Args: o.args(),
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[edited]())
	cmd.Flags().StringArrayVar(&o.columns, "column", nil, "column of the key, as FAMILY:QUALIFIER; repeat it for a key of several columns")
	cmd.Flags().StringVar(&o.entries, "entries", "", "transactional table and family for the entries, as TABLE/FAMILY")
	cmd.Flags().BoolVar(&o.unique, "unique", false, "no two rows may have the same key")
	o.Require(o.check)
	o.Consent.Add(cmd)
	cmd.ValidArgsFunction = o.completeNames
	return cmd
}

// An edited is what index create or index drop did, or would do.
type edited struct {
	Project  string      `json:"project"`  // Google Cloud project
	Instance string      `json:"instance"` // Bigtable instance
	DryRun   bool        `json:"dry_run"`  // whether --dry-run was given
	Table    string      `json:"table"`    // table that the index is about
	Index    string      `json:"index"`    // name of the index
	Unique   bool        `json:"unique"`   // whether no two rows may have the same key
	Columns  []string    `json:"columns"`  // what the keys depend on
	Entries  string      `json:"entries"`  // table and family of the entries
	Before   index.State `json:"before"`   // state before the command; empty if there was no index
	State    index.State `json:"state"`    // state afterwards; empty if there is no index
}

func (o *options) edited(f *found) *edited {
	return &edited{Project: o.Connect.Project, Instance: o.Connect.Instance, DryRun: o.Consent.DryRun, Table: f.Table, Index: f.Name, Unique: f.Unique, Columns: names(f.Columns), Entries: f.table + "/" + f.family, Before: f.State, State: f.State}
}

func (e *edited) text(w io.Writer) error {
	kind := "an index"
	if e.Unique {
		kind = "a unique index"
	}
	state := "does not exist"
	if e.Before != index.Absent {
		state = string(e.Before)
	}
	_, err := fmt.Fprintf(w, "project %s, instance %s: %s of table %s, %s on %s, entries in %s: %s\n", e.Project, e.Instance, e.Index, e.Table, kind, strings.Join(e.Columns, " "), e.Entries, state)
	return err
}

// check reads the flags.
func (o *createOptions) check() (err error) {
	if (len(o.columns) == 0) != (o.entries == "") {
		return cli.Usagef("--column and --entries need each other; leave out both to continue an index")
	}
	if o.entries != "" {
		o.want.table, o.want.family, err = entries(o.entries)
	}
	for _, text := range o.columns {
		c, wrong := format.ParseColumn(text)
		if wrong != nil {
			return cli.Usagef("--column %q is not of the form FAMILY:QUALIFIER: %w", text, wrong)
		}
		o.want.Columns = append(o.want.Columns, c)
	}
	return err
}

// wanted returns the index of the flags, or the recorded one.
func (o *createOptions) wanted(ctx context.Context, s *session.Session) (*found, error) {
	all, err := survey(ctx, s, o.table)
	if err != nil {
		return nil, err
	}
	n := slices.IndexFunc(all, func(f found) bool { return f.Name == o.name })
	switch {
	case n >= 0 && o.entries == "":
		return &all[n], nil
	case o.entries == "":
		return nil, cli.Usagef("--column and --entries are missing: an index of the name %s does not exist yet", o.name)
	}
	f := &o.want
	f.Name, f.Table, f.Unique = o.name, o.table, o.unique
	if n >= 0 {
		if all[n].table != f.table || all[n].family != f.family {
			return nil, cli.Usagef("--entries %s: table %s has an index %s with its entries in %s/%s", o.entries, o.table, o.name, all[n].table, all[n].family)
		}
		if f.Unique != all[n].Unique || !slices.Equal(f.Columns, all[n].Columns) {
			return nil, cli.Usagef("table %s has an index %s on other columns (%s), or with another --unique: leave out the flags to continue it, or use another name", o.table, o.name, strings.Join(names(all[n].Columns), " "))
		}
		f.State = all[n].State
	}
	for _, c := range f.Columns {
		if err := s.UseFamilies(ctx, o.table, c.Family); err != nil {
			return nil, err
		}
	}
	return f, s.UseFamilies(ctx, f.table, f.family)
}

func (o *createOptions) run(ctx context.Context, s *session.Session) error {
	f, err := o.wanted(ctx, s)
	if err != nil {
		return err
	}
	x, err := f.open()
	if err != nil {
		return err
	}
	e := o.edited(f)
	question := fmt.Sprintf("Create the index in %s? Clients that do not keep it cannot write the columns any more.", s.Where)
	done := "created " + o.name
	if f.State == index.Ready {
		question, done = "", o.name+" is ready already"
	}
	if ok, err := o.Ask(ctx, e, e.text, question); !ok {
		return err
	}
	s.Progress.Set("waiting until all clients know the index")
	err = x.Create(ctx, s.Client(), o.name, func(p jobs.Status) {
		s.Progress.Set("%d of %s, %d rows", p.Done, cli.Count(p.Parts, "part"), p.Rows)
	})
	s.Progress.End()
	return o.finish(ctx, s.Client(), x, e, err, done)
}

// finish prints the outcome.
func (o *options) finish(ctx context.Context, client *txn.Client, x *index.Indexes, e *edited, err error, done string) error {
	if err != nil {
		return session.Resumable(ctx, verdict(err))
	}
	if e.State, err = x.State(ctx, client, o.name); err != nil {
		return err
	}
	return o.Print(e, cli.Textf("%s\n", done))
}

func newDropCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "drop TABLE NAME",
		Short: "Remove an index and its entries",
		Long: `Remove an index and its entries, while services read and write the table. The index
cannot be read from then on. The command waits 10 s for commits that still maintain it.
If it is interrupted, run it again: it continues.

` + cli.AsksFirst + `

Exit status 3: the table has no such index.`,
		Example: `  percctl index drop users users-by-email --dry-run`,
		Args:    o.args(),
		RunE:    o.Runs(session.Changes, o.drop),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[edited]())
	o.Consent.Add(cmd)
	cmd.ValidArgsFunction = o.completeNames
	return cmd
}

func (o *options) drop(ctx context.Context, s *session.Session) error {
	f, err := o.find(ctx, s)
	if err != nil {
		return err
	}
	x, err := index.New(f.table, f.family)
	if err != nil {
		return err
	}
	e := o.edited(f)
	if ok, err := o.Ask(ctx, e, e.text, fmt.Sprintf("Drop the index in %s?", s.Where)); !ok {
		return err
	}
	return o.finish(ctx, s.Client(), x, e, x.Drop(ctx, s.Client(), o.name), "dropped "+o.name)
}
