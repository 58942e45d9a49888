// Package indexcmd is percctl index: the indexes that commits keep.
package indexcmd

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/index"
)

// NewCmd returns the index command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("index", "Create, list, verify and drop indexes of tables",
		`Create, list, verify and drop indexes of tables, while the tables are in use.

Services keep indexes with Go package txn/index. The entries are in a table of their
own.`,
		newCreateCmd(s), newListCmd(s), newStatusCmd(s), newVerifyCmd(s), newDropCmd(s))
}

type options struct {
	session.Options
	table, name string
}

func (o *options) args() cobra.PositionalArgs {
	return cli.ExactArgs(2, "two, TABLE and NAME", cli.Into(&o.table, &o.name))
}

// completeNames completes TABLE and NAME.
func (o *options) completeNames(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return o.CompleteTables(1)(cmd, args, begun)
	}
	return o.CompleteNames(2, func(ctx context.Context, s *session.Session, args []string) ([]string, error) {
		all, err := survey(ctx, s, args[0])
		var names []string
		for _, f := range all {
			names = append(names, f.Name)
		}
		return names, err
	})(cmd, args, begun)
}

// A found is an index as it is recorded, and where its entries are.
type found struct {
	index.Info
	table, family string
}

// entries splits TABLE/FAMILY.
func entries(text string) (table, family string, err error) {
	table, family, ok := strings.Cut(text, "/")
	if !ok || table == "" || family == "" {
		return "", "", cli.Usagef("--entries %q is not of the form TABLE/FAMILY", text)
	}
	return table, family, nil
}

// survey finds the indexes of a table. An index whose creation has only begun may be missing.
func survey(ctx context.Context, s *session.Session, table string) (all []found, err error) {
	if err := s.Use(ctx, table); err != nil {
		return nil, err
	}
	registered, err := changes.Indexes(ctx, s.Client(), table)
	if err != nil {
		return nil, err
	}
	var places []string
	for _, i := range registered {
		if slices.Contains(places, i.Entries) {
			continue
		}
		places = append(places, i.Entries)
		f := found{}
		f.table, f.family, _ = strings.Cut(i.Entries, "/")
		infos, err := index.List(ctx, s.Client(), f.table, f.family)
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			if info.Table == table {
				all = append(all, found{info, f.table, f.family})
			}
		}
	}
	return all, nil
}

// find finds an index. Exit status 3 if there is none.
func (o *options) find(ctx context.Context, s *session.Session) (*found, error) {
	all, err := survey(ctx, s, o.table)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range all {
		if f.Name == o.name {
			return &f, nil
		}
		names = append(names, f.Name)
	}
	if len(names) == 0 {
		return nil, session.NotFoundf("table %s has no index %s; it has none", o.table, o.name)
	}
	return nil, session.NotFoundf("table %s has no index %s; it has %s", o.table, o.name, strings.Join(names, ", "))
}

// open returns the index for calls of package index. A function cannot be read from the record.
func (f *found) open() (*index.Indexes, error) {
	if f.Function {
		return nil, session.Foundf("index %s has a function for its keys, which percctl does not have: call Verify or Create of package txn/index in a service", f.Name)
	}
	return index.New(f.table, f.family, f.Index)
}

// An Index is an index as list prints it.
type listed struct {
	Table     string        `json:"table"`      // table that the index is about
	Index     string        `json:"index"`      // name of the index
	State     index.State   `json:"state"`      // `delete-only`, `building`, `ready` or `dropping`
	Since     tso.Timestamp `json:"since_ts"`   // when it entered the state
	SinceTime string        `json:"since_time"` // since_ts as a time
	Unique    bool          `json:"unique"`     // whether no two rows may have the same key
	Columns   []string      `json:"columns"`    // what the keys depend on
	Function  bool          `json:"function"`   // whether a function of the services makes the keys
	Entries   string        `json:"entries"`    // table and family of the entries
	Parts     int           `json:"parts"`      // parts of the build or removal that is under way; 0 if there is none
	Done      int           `json:"parts_done"` // parts that are complete
	Rows      int64         `json:"rows"`       // rows that it has handled
}

func (f *found) listed(ctx context.Context, s *session.Session) (listed, error) {
	l := listed{Table: f.Table, Index: f.Name, State: f.State, Since: f.Since, SinceTime: cli.Time(f.Since), Unique: f.Unique, Columns: names(f.Columns), Function: f.Function, Entries: f.table + "/" + f.family}
	x, err := index.New(f.table, f.family, f.Index)
	if err != nil {
		return l, err
	}
	p, err := x.Progress(ctx, s.Client(), f.Name)
	l.Parts, l.Done, l.Rows = p.Parts, p.Done, p.Rows
	return l, err
}

func names(columns []txn.Column) []string {
	all := []string{}
	for _, c := range columns {
		all = append(all, c.String())
	}
	return all
}
