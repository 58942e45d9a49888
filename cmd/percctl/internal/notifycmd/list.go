package notifycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

type listOptions struct {
	session.Options
	tables    session.Tables
	dead      bool
	journal   bool
	observer  string
	olderThan time.Duration
	limit     int
}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{}
	cmd := &cobra.Command{
		Use:   "list [TABLE…]",
		Short: "List pending notifications and dead letters",
		Long: `List the notifications in tables in the order of row keys, with the state of each
observer, and then the dead letters. Without TABLE, the command reads all tables
that have observers. It changes nothing and does not wait for locks. The age of a
notification is the age of its oldest change, in oracle time.

Workers remove notifications that all observers have acknowledged. In a large table
the command may take minutes, because Bigtable may have to read all rows to find the
notifications. --journal reads only the rows that the journal of pending work names.`,
		Example: `  percctl notify list
  percctl notify list documents --older-than 5m --observer parser
  percctl notify list --dead -o jsonl`,
		Args: cli.AnyArgs(cli.All(&o.tables.Names)),
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ListOf[item](csvHeader))
	o.tables.Range.Add(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.dead, "dead", false, "only dead letters")
	f.BoolVar(&o.journal, "journal", false, "only what the journal of pending work names; fast in a large table")
	observerFlag(cmd, &o.Flags, &o.observer, "only notifications that this observer has not acknowledged, and its dead letters")
	f.DurationVar(&o.olderThan, "older-than", 0, "only those at least this old, in oracle time (0: all)")
	f.IntVar(&o.limit, "limit", 0, "maximum number of notifications, and of dead letters, to list (0: all)")
	cli.AtLeast(&o.Checks, "older-than", &o.olderThan, 0, "positive")
	cli.AtLeast(&o.Checks, "limit", &o.limit, 0, "positive, or 0 for all")
	o.Require(o.check)
	cmd.ValidArgsFunction = o.CompleteTables(0)
	return cmd
}

func (o *listOptions) check() error {
	err := o.tables.Range.Check()
	if err == nil && (o.dead || o.journal) && o.tables.Range.Rows != (session.Range{}) {
		return cli.Usagef("--dead and --journal do not go with a range of rows: name tables, or add --observer")
	}
	return err
}

// errLimit ends a walk at --limit.
var errLimit = errors.New("limit")

// A kind counts the notifications or the dead letters of a list.
type kind struct {
	n    int
	more bool // there are more than --limit
}

func (k kind) text(noun string) string {
	if k.more {
		return "at least " + cli.Count(k.n+1, noun)
	}
	return cli.Count(k.n, noun)
}

// lister prints items and counts them.
type lister struct {
	*listOptions
	out                    *cli.List[item]
	now                    tso.Timestamp
	notifications, letters kind
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	if o.observer != "" { // a walk over the tables takes time
		if err := s.CheckObserver(ctx, o.observer); err != nil && !o.dead { // dead letters outlive their observers
			return err
		}
	}
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	l := &lister{listOptions: o, now: now, out: &cli.List[item]{
		Out: o.Streams.Out, Format: o.Format, Header: csvHeader, Rows: item.csv,
		Text: func(w io.Writer, it item) error { return it.text(w, cli.StyleFor(o.Streams.Out)) },
	}}
	err = l.list(ctx, s)
	s.Progress.End()
	if eerr := l.out.End(); eerr != nil {
		return eerr
	}
	if err != nil {
		return fmt.Errorf("stopped after %s and %s: %w", l.notifications.text("notification"), l.letters.text("dead letter"), err)
	}
	if o.observer != "" && l.notifications.n+l.letters.n == 0 {
		if err := s.CheckObserver(ctx, o.observer); err != nil {
			return err
		}
	}
	notifications, letters, rest := l.notifications.text("notification")+", ", l.letters.text("dead letter"), ""
	if o.dead {
		notifications = "" // not counted
	}
	if o.tables.Range.Rows != (session.Range{}) {
		letters = "dead letters not counted: they are of whole tables"
	}
	if l.notifications.more || l.letters.more {
		rest = "; --limit left out the rest"
	}
	fmt.Fprintf(o.Streams.Err, "%s%s%s\n", notifications, letters, rest)
	return nil
}

func (l *lister) list(ctx context.Context, s *session.Session) error {
	only := l.tables.Names
	if err := s.Use(ctx, only...); err != nil {
		return err
	}
	if !l.listOptions.dead {
		if err := l.listNotifications(ctx, s); err != nil && !errors.Is(err, errLimit) {
			return err
		}
	}
	if l.tables.Range.Rows != (session.Range{}) {
		return nil
	}
	for d, err := range changes.DeadLetters(ctx, s.Client()) {
		if err != nil {
			return err
		}
		if (len(only) > 0 && !slices.Contains(only, d.Cell.Table)) || (l.observer != "" && d.Observer != l.observer) || (l.olderThan > 0 && l.now-d.ParkedTS < tso.Timestamp(l.olderThan.Microseconds())) {
			continue
		}
		if err := l.add(&l.letters, newDeadLetter(d, l.now)); errors.Is(err, errLimit) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) listNotifications(ctx context.Context, s *session.Session) error {
	tables := l.tables.Names
	if len(tables) == 0 {
		observed, err := session.AllObserved(ctx, s)
		if err != nil {
			return err
		}
		for _, o := range observed {
			tables = append(tables, o.Table)
		}
	}
	tables = slices.Compact(slices.Sorted(slices.Values(tables)))
	look := func(table string, rows bigtable.RowSet) error {
		for o, err := range changes.Observations(ctx, s.Client(), table, rows) {
			if err != nil {
				return err
			}
			s.Progress.Set("reading table %s: %s so far", table, cli.Count(l.notifications.n, "notification"))
			if !l.wants(o) {
				continue
			}
			if err := l.add(&l.notifications, newNotification(o, l.now)); err != nil {
				return err
			}
		}
		return nil
	}
	if !l.journal {
		return l.tables.Each(ctx, s, tables, look)
	}
	for _, table := range tables {
		rows, err := changes.EnteredRows(ctx, s.Client(), table)
		if err == nil && len(rows) > 0 {
			err = look(table, rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) wants(o changes.Observation) bool {
	return (l.observer == "" || slices.Contains(o.Observers, l.observer) && o.Pending(l.observer)) &&
		(l.olderThan == 0 || len(o.Triggers) > 0 && l.now-o.Triggers[0].TS >= tso.Timestamp(l.olderThan.Microseconds()))
}

func (l *lister) add(k *kind, it item) error {
	if k.more = l.limit > 0 && k.n == l.limit; k.more {
		return errLimit
	}
	k.n++
	return l.out.Add(it)
}
