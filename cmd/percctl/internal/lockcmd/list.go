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
	"github.com/percolator-bigtable/percolator/txn/format"
)

type listOptions struct {
	session.Options
	chosen
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
		RunE: o.Runs(session.Looks, o.list),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[inspect.Transaction](inspect.CSVHeader))
	o.chosen.add(cmd, &o.Options)
	return cmd
}

// chosen are the locks that list and resolve choose.
type chosen struct {
	tables    session.Tables
	olderThan time.Duration
	limit     int
}

func (c *chosen) add(cmd *cobra.Command, o *session.Options) {
	c.tables.Add(cmd, o)
	cmd.Flags().DurationVar(&c.olderThan, "older-than", 0, "only transactions that began at least this long ago, in oracle time (0: all)")
	cmd.Flags().IntVar(&c.limit, "limit", inspect.DefaultLimit, "maximum number of locks to read; the command holds them in memory")
	cli.AtLeast(&o.Checks, "older-than", &c.olderThan, 0, "positive")
	cli.AtLeast(&o.Checks, "limit", &c.limit, 1, "positive")
}

// find reads the locks, of one transaction if startTS is not 0.
func (c *chosen) find(ctx context.Context, s *session.Session, tables []string, startTS tso.Timestamp) (*inspect.Collection, error) {
	want := inspect.Want{Limit: c.limit, StartTS: startTS}
	if c.olderThan > 0 {
		now, err := s.Now(ctx)
		if err != nil {
			return nil, err
		}
		latest := now.Add(-c.olderThan)
		want.Keep = func(l format.Lock) bool { return l.StartTS <= latest }
	}
	return inspect.Collect(ctx, s, &c.tables, tables, want)
}

func (o *listOptions) list(ctx context.Context, s *session.Session) error {
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	found, err := o.find(ctx, s, tables, 0)
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
