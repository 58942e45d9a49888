package session

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = 2 * time.Second

// CompleteTables completes names of tables; most bounds how many, 0 for any number, and
// below 0 completes a flag.
func (f *Flags) CompleteTables(most int) cobra.CompletionFunc {
	return f.CompleteNames(most, func(ctx context.Context, s *Session, _ []string) ([]string, error) {
		return admin.Tables(ctx, s.Client())
	})
}

// CompleteNames completes the first most arguments with the names that ask returns.
func (f *Flags) CompleteNames(most int, ask func(_ context.Context, _ *Session, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := f.quietly(cmd, func(ctx context.Context, s *Session) ([]string, error) { return ask(ctx, s, args) })
		return slices.DeleteFunc(names, func(n string) bool { return most >= 0 && slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFamilies completes names of families of the table that the first
// argument names, also behind commas; after comes behind each.
func (f *Flags) CompleteFamilies(after string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		head := begun[:strings.LastIndexByte(begun, ',')+1]
		var all []string
		for _, name := range f.quietly(cmd, func(ctx context.Context, s *Session) ([]string, error) {
			d, err := admin.Describe(ctx, s.Client(), args[0])
			return d.Families, err
		}) {
			all = append(all, head+name+after)
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// completedRows is how many rows are proposed at a time.
const completedRows = 20

// keys are the rows of a table whose keys begin like this, with what is stored in them
// but for the values. They are read as they are stored: a shell must not wait for locks.
func (s *Session) keys(ctx context.Context, table, begun string) (rows []bigtable.Row, err error) {
	if begun != "" {
		if begun, err = ParseRow(begun); err != nil {
			return nil, err
		}
	}
	err = s.Bigtable.Open(table).ReadRows(ctx, bigtable.PrefixRange(begun), func(r bigtable.Row) bool {
		rows = append(rows, r)
		return true
	}, bigtable.LimitRows(completedRows), bigtable.RowFilter(bigtable.ChainFilters(bigtable.LatestNFilter(1), bigtable.StripValueFilter())))
	return rows, err
}

// CompleteRows completes the arguments TABLE ROW.
func (f *Flags) CompleteRows(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return f.CompleteTables(1)(cmd, args, begun)
	}
	return f.quietly(cmd, func(ctx context.Context, s *Session) (names []string, err error) {
		rows, err := s.keys(ctx, args[0], begun)
		for _, r := range rows {
			names = append(names, Row(r.Key()))
		}
		return names, err
	}), cobra.ShellCompDirectiveNoFileComp
}

// CompleteCells completes the argument CELL: first the table, then the row, then the column.
func (f *Flags) CompleteCells(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 && strings.Contains(cmd.Use, " PRIMARY") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	table, rest, ok := strings.Cut(begun, "/")
	if !ok {
		names, _ := f.CompleteTables(0)(cmd, nil, "")
		for i := range names {
			names[i] += "/"
		}
		return names, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return f.quietly(cmd, func(ctx context.Context, s *Session) (names []string, err error) {
		row, _, whole := cutLast(rest, "/")
		if whole {
			rest = row
		}
		rows, err := s.keys(ctx, table, rest)
		for _, r := range rows {
			key := table + "/" + Row(r.Key()) + "/"
			if !whole || Row(r.Key()) != row {
				names = append(names, key)
				continue
			}
			for _, family := range Families(r) {
				if slices.Contains(format.MetadataFamilies, family) {
					continue
				}
				for _, item := range r[family] {
					_, qualifier, _ := strings.Cut(item.Column, ":")
					names = append(names, txn.Cell{Table: table, Row: r.Key(), Family: family, Qualifier: qualifier}.String())
				}
			}
		}
		return names, err
	}), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// cutLast is strings.Cut at the last separator.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// quietly asks for names; a shell has no place for errors.
func (f *Flags) quietly(cmd *cobra.Command, ask func(context.Context, *Session) ([]string, error)) (names []string) {
	quiet := *f
	quiet.Timeout = completionTimeout
	err := quiet.Run(cmd.Context(), &cli.Streams{Err: io.Discard}, Looks, txn.Config{}, func(ctx context.Context, s *Session) (err error) {
		names, err = ask(ctx, s)
		return err
	})
	if err != nil {
		return nil
	}
	return names
}
