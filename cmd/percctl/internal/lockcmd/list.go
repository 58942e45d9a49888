package lockcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type listOptions struct {
	session.Options
	tables    session.Tables
	olderThan time.Duration
	limit     int
}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{}
	cmd := &cobra.Command{
		Use:   "list TABLE… | --all",
		Short: "List locks by transaction, with what resolving them would do",
		Long: `List the locks in tables by transaction, the oldest transaction first. For each
transaction the list says what resolving its locks would do now, as its primary
decides. Ages are in oracle time, which also decides when a lock expires. The
command changes nothing. A transaction may end while the list is printed.

The list has the locks in the tables and rows that you name. A transaction may
have more locks elsewhere: percctl txn explain shows them. The command sorts the
locks in memory and reads at most --limit of them.

Exit status 4: there are more locks than --limit, or records that cannot be read.`,
		Example: `  percctl lock list --all
  percctl lock list accounts --prefix user/7 --older-than 1m -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.tables.Names = args
			return o.run(cmd.Context())
		},
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[inspect.Transaction](inspect.CSVHeader))
	o.tables.Add(cmd)
	addOlderThan(cmd, &o.olderThan)
	addLimit(cmd, &o.limit)
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

func addOlderThan(cmd *cobra.Command, d *time.Duration) {
	cmd.Flags().DurationVar(d, "older-than", 0, "only transactions that began at least this long ago, in oracle time (0: all)")
}

func addLimit(cmd *cobra.Command, n *int) {
	cmd.Flags().IntVar(n, "limit", inspect.DefaultLimit, "maximum number of locks to read; the command holds them in memory")
}

func checkLimit(n int) error {
	if n <= 0 {
		return cli.Usagef("--limit %d: it has to be positive", n)
	}
	return nil
}

// olderThan chooses locks by the age of their transaction; nil chooses all.
func olderThan(ctx context.Context, s *session.Session, d time.Duration) (func(format.Lock) bool, error) {
	if d == 0 {
		return nil, nil
	}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	latest := now - tso.Timestamp(d.Microseconds())
	return func(l format.Lock) bool { return l.StartTS <= latest }, nil
}

func checkOlderThan(d time.Duration) error {
	if d < 0 {
		return cli.Usagef("--older-than %v: it has to be positive", d)
	}
	return nil
}

func (o *listOptions) run(ctx context.Context) error {
	if err := o.tables.Check(); err != nil {
		return err
	}
	if err := checkOlderThan(o.olderThan); err != nil {
		return err
	}
	if err := checkLimit(o.limit); err != nil {
		return err
	}
	return o.Flags.Run(ctx, o.Streams, session.Looks, txn.Config{}, o.list)
}

func (o *listOptions) list(ctx context.Context, s *session.Session) error {
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	keep, err := olderThan(ctx, s, o.olderThan)
	if err != nil {
		return err
	}
	found, err := inspect.Collect(ctx, s, &o.tables, tables, inspect.Want{Keep: keep, Limit: o.limit})
	if err != nil {
		return err
	}
	all, err := inspect.Describe(ctx, s, found.Groups)
	if err != nil {
		return err
	}
	s.Progress.End()
	list := newTransactionList(o.Streams.Out, o.Format)
	locks := 0
	for _, t := range all {
		locks += len(t.Locks)
		if err := list.Add(t); err != nil {
			return err
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	fmt.Fprintf(o.Streams.Err, "%s of %s in %s\n", cli.Count(locks, "lock"), cli.Count(len(all), "transaction"), cli.Count(len(tables), "table"))
	return found.Verdict()
}

func newTransactionList(out io.Writer, f cli.Format) *cli.List[*inspect.Transaction] {
	style := cli.StyleFor(out)
	return &cli.List[*inspect.Transaction]{
		Out: out, Format: f,
		Header: inspect.CSVHeader,
		Rows:   (*inspect.Transaction).CSVRows,
		Text:   func(w io.Writer, t *inspect.Transaction) error { return t.Text(w, style) },
	}
}
