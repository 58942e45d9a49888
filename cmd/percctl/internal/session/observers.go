package session

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// ParseTableColumn reads the argument TABLE/FAMILY:QUALIFIER.
func ParseTableColumn(s string) (table string, column txn.Column, err error) {
	table, rest, ok := strings.Cut(s, "/")
	if !ok || table == "" {
		return "", txn.Column{}, cli.Usagef("column %q is not of the form table/family:qualifier", s)
	}
	column, err = format.ParseColumn(rest)
	if err != nil {
		return "", txn.Column{}, cli.Usagef("column %q is not of the form table/family:qualifier: %w", s, err)
	}
	return table, column, nil
}

// ColumnArg reads the argument TABLE/FAMILY:QUALIFIER.
func ColumnArg(table *string, column *txn.Column) func([]string) error {
	return func(args []string) (err error) { *table, *column, err = ParseTableColumn(args[0]); return err }
}

// Observed finds a column in the registry of observers. Exit status 3 where it
// is not there.
func Observed(ctx context.Context, s *Session, table string, column txn.Column) (changes.ObservedColumn, error) {
	all, err := changes.ObservedColumns(ctx, s.Client(), table)
	if err != nil {
		return changes.ObservedColumn{}, err
	}
	if found, ok := changes.Watching(all, table, column); ok {
		return found, nil
	}
	if err := s.UseFamilies(ctx, table, column.RealFamily()); err != nil {
		return changes.ObservedColumn{}, err
	}
	typed := table + "/" + column.String()
	return changes.ObservedColumn{}, NotFoundf("column %s has no observer%s", typed, like(typed, columnNames(all)))
}

// AllObserved returns the observed columns of tables; of all tables of the
// deployment where none is named.
func AllObserved(ctx context.Context, s *Session, tables ...string) ([]changes.ObservedColumn, error) {
	if len(tables) == 0 {
		var err error
		if tables, err = s.AllTables(ctx); err != nil {
			return nil, err
		}
	}
	var all []changes.ObservedColumn
	for _, t := range tables {
		if err := s.Use(ctx, t); err != nil {
			return nil, err
		}
		cols, err := changes.ObservedColumns(ctx, s.Client(), t)
		if err != nil {
			return nil, err
		}
		all = append(all, cols...)
	}
	return all, nil
}

// CompleteObservers completes ids of observers: everywhere with at below 0,
// otherwise as the argument of that number, of the table that the one before it
// names.
func (f *Flags) CompleteObservers(at int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var tables []string
		if at >= 0 {
			if len(args) != at {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			tables = args[at-1 : at]
		}
		return f.quietly(cmd, func(ctx context.Context, s *Session) ([]string, error) {
			all, err := AllObserved(ctx, s, tables...)
			return observerIDs(all), err
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteColumns completes observed columns, table/family:qualifier, as the
// first argument.
func (f *Flags) CompleteColumns(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.quietly(cmd, func(ctx context.Context, s *Session) ([]string, error) {
		all, err := AllObserved(ctx, s)
		return columnNames(all), err
	}), cobra.ShellCompDirectiveNoFileComp
}
