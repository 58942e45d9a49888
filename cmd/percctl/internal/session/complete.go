package session

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = 2 * time.Second

// CompleteTables completes names of tables; most bounds how many, 0 for any
// number.
func (f *Flags) CompleteTables(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := f.quietly(cmd, func(ctx context.Context, s *Session) ([]string, error) { return admin.Tables(ctx, s.Client()) })
		return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
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
