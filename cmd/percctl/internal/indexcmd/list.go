package indexcmd

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/index"
)

type listOptions struct {
	session.Options
	tables []string
}

var listHeader = []string{"table", "index", "state", "since_ts", "since_time", "unique", "columns", "function", "entries", "parts", "parts_done", "rows"}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{}
	cmd := &cobra.Command{
		Use:   "list [TABLE…]",
		Short: "List indexes with their states",
		Long: `List the indexes of tables with their states. Without TABLE, the list covers all tables
of the deployment.

  delete-only  commits remove entries of old keys; the index is being created
  building     commits maintain the index; entries of older rows are being added
  ready        the index can be read
  dropping     its entries are being removed`,
		Example: `  percctl index list
  percctl index list users -o json`,
		Args: cli.AnyArgs(cli.All(&o.tables)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ListOf[listed](listHeader))
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	tables := o.tables
	if len(tables) == 0 {
		var err error
		if tables, err = s.AllTables(ctx); err != nil {
			return err
		}
	}
	list := &cli.List[listed]{
		Out: o.Streams.Out, Format: o.Format,
		Header: listHeader,
		Rows: func(l listed) [][]string {
			return [][]string{{l.Table, l.Index, string(l.State), cli.Number(l.Since), l.SinceTime, strconv.FormatBool(l.Unique), strings.Join(l.Columns, " "), strconv.FormatBool(l.Function), l.Entries, strconv.Itoa(l.Parts), strconv.Itoa(l.Done), strconv.FormatInt(l.Rows, 10)}}
		},
		TableHeader: []string{"TABLE", "INDEX", "STATE", "KEYS", "COLUMNS", "ENTRIES"},
		TableRows: func(l listed) [][]string {
			return [][]string{{l.Table, l.Index, string(l.State), l.keys(), strings.Join(l.Columns, " "), l.Entries}}
		},
	}
	n := 0
	for _, table := range tables {
		all, err := survey(ctx, s, table)
		if err != nil {
			return err
		}
		for _, f := range all {
			l, err := f.listed(ctx, s)
			if err == nil {
				err = list.Add(l)
			}
			if err != nil {
				return err
			}
			n++
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(o.Streams.Err, "%d %s\n", n, map[bool]string{true: "index", false: "indexes"}[n == 1])
	return err
}

func (l listed) keys() string {
	words := "not unique"
	if l.Unique {
		words = "unique"
	}
	if l.Function {
		words += ", function"
	}
	return words
}

func newStatusCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "status TABLE NAME",
		Short: "Show the state of an index and the progress of its build",
		Long: `Show the state of an index, and how far its creation or removal has come.

Exit status 3: the table has no such index.`,
		Example: `  percctl index status users users-by-email`,
		Args:    o.args(),
		RunE:    o.Runs(session.Looks, o.status),
	}
	o.Setup(cmd, s, session.PointTimeout, cli.ObjectOf[listed]())
	cmd.ValidArgsFunction = o.completeNames
	return cmd
}

func (o *options) status(ctx context.Context, s *session.Session) error {
	f, err := o.find(ctx, s)
	if err != nil {
		return err
	}
	l, err := f.listed(ctx, s)
	if err != nil {
		return err
	}
	return o.Print(l, l.text)
}

func (l listed) text(w io.Writer) error {
	fmt.Fprintf(w, "index %s of table %s: %s since %s\n  columns  %s (%s)\n  entries  %s\n", l.Index, l.Table, l.State, l.SinceTime, strings.Join(l.Columns, " "), l.keys(), l.Entries)
	if l.Parts > 0 {
		fmt.Fprintf(w, "  progress %d of %s, %d rows\n", l.Done, cli.Count(l.Parts, "part"), l.Rows)
	}
	if l.State == index.DeleteOnly || l.State == index.Building || l.State == index.Dropping {
		command := "create"
		if l.State == index.Dropping {
			command = "drop"
		}
		fmt.Fprintf(w, "  if nothing works on it any more, continue with percctl index %s %s %s\n", command, l.Table, l.Index)
	}
	return nil
}
