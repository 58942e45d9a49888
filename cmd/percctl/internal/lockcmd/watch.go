package lockcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/inspect"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
	"github.com/percolator-bigtable/percolator/txn/format"
)

type watchOptions struct {
	session.Options
	tables session.Tables
	limits picture.Limits
	meter  watch.Meter
	every  time.Duration
}

func newWatchCmd(s *cli.Streams) *cobra.Command {
	o := &watchOptions{}
	cmd := &cobra.Command{
		Use:   "watch TABLE… | --all",
		Short: "Print when locks appear, change their outcome and disappear",
		Long: `Print a line when the locks of a transaction appear, when resolving them would have
another effect than before (its owner died, for example), and when they are gone, with the
outcome of the transaction. The command changes nothing, and runs until Ctrl-C.

It reads rows with locks again after each --interval. It finds new locks by reading all
rows in turn, a page at a time, as fast as --max-requests and --max-bytes allow. So it
may not see locks that live shorter than a pass over the tables: add --prefix, or name
fewer tables. It keeps at most 200,000 locks.

With -o json, it prints one object per line, as with -o jsonl.`,
		Example: `  percctl lock watch --all
  percctl lock watch accounts --prefix user/7 -o json`,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout)
	o.tables.Add(cmd, &o.Options)
	o.limits.Add(cmd, &o.Options)
	o.Connect.Options = o.meter.DialOptions()
	cmd.Flags().DurationVar(&o.every, "interval", 2*time.Second, "how often to read rows with locks again")
	cli.AtLeast(&o.Checks, "interval", &o.every, 100*time.Millisecond, "at least 100ms")
	cli.FormatFlag(cmd, &o.Format, cli.Table, cli.JSON, cli.JSONL)
	cli.Prints(cmd, cli.LinesOf[change]())
	return cmd
}

// A change is what happened to the locks of a transaction.
type change struct {
	Time        string               `json:"time"`        // when the command noticed, by this machine's clock
	Event       string               `json:"event"`       // `appeared`, `changed` (resolving the locks would have another outcome) or `gone`
	Transaction *inspect.Transaction `json:"transaction"` // the transaction; its locks are those that were found
}

func (c change) text(w io.Writer, style cli.Style) error {
	t := c.Transaction
	what := ""
	if len(t.Locks) > 0 {
		what = cli.Count(len(t.Locks), "lock") + ", "
	}
	at, _ := time.Parse(time.RFC3339Nano, c.Time) // it is ours
	_, err := fmt.Fprintf(w, "%s  %s  %s %d: %s%s\n", at.Local().Format(time.TimeOnly), style.Bold(fmt.Sprintf("%-8s", c.Event)), t.Primary, t.StartTS, what, t.Verdict)
	return err
}

// A seen is a transaction with locks, as it was last described.
type seen struct {
	id      txnID
	outcome doctor.Outcome
	at      time.Time
}

type txnID struct {
	primary txn.Cell
	startTS tso.Timestamp
}

// A tail prints what happens to locks.
type tail struct {
	*watchOptions
	session *session.Session
	scan    watch.Scan
	known   map[txnID]*seen
}

func (o *watchOptions) run(ctx context.Context, s *session.Session) error {
	tables, err := o.tables.Open(ctx, s)
	if err != nil {
		return err
	}
	t := &tail{watchOptions: o, session: s, known: map[txnID]*seen{}}
	limits := o.limits.For(s.Connect)
	t.scan = watch.Scan{Start: o.tables.Range.Rows.Start, End: o.tables.Range.Rows.End, Limit: inspect.DefaultLimit, PageRows: limits.PageRows()}
	t.scan.SetTables(tables)
	fmt.Fprintf(o.Streams.Err, "watching the locks of %s until Ctrl-C\n", cli.Count(len(tables), "table"))
	var used watch.Usage
	for {
		worked, err := t.step(ctx)
		if ctx.Err() != nil {
			return session.Ended(ctx)
		}
		if err != nil {
			return err
		}
		now := o.meter.Used()
		wait := limits.Pause(now.Minus(used))
		if used = now; !worked {
			wait = max(wait, o.every/10)
		}
		_ = pause.For(ctx, wait) // the loop sees that ctx has ended
	}
}

// step does one piece of work: it reads rows with locks again, or else the next page, and
// prints what has changed.
func (t *tail) step(ctx context.Context) (worked bool, err error) {
	stale := time.Now().Add(-t.every)
	if worked, err = t.scan.ReadAgain(ctx, t.session.Bigtable, stale); err == nil && !worked {
		worked, err = t.scan.Pass(ctx, t.session.Bigtable, stale)
	}
	if err != nil {
		return worked, err
	}
	there := map[txnID][]format.Lock{}
	for _, g := range t.scan.Groups() {
		there[txnID{g[0].Primary, g[0].StartTS}] = g
	}
	for id, locks := range there {
		switch k := t.known[id]; {
		case k == nil:
			t.known[id] = &seen{id: id}
			err = t.print(ctx, t.known[id], "appeared", locks)
		case k.at.Before(stale):
			err = t.print(ctx, k, "changed", locks)
			worked = true
		}
		if err != nil {
			return worked, err
		}
	}
	for id, k := range t.known {
		if there[id] == nil {
			delete(t.known, id)
			if err := t.print(ctx, k, "gone", nil); err != nil {
				return worked, err
			}
		}
	}
	return worked, nil
}

// print describes a transaction, and prints the event unless nothing has changed.
func (t *tail) print(ctx context.Context, k *seen, event string, locks []format.Lock) error {
	now, err := inspect.One(ctx, t.session, k.id.primary, k.id.startTS, locks)
	if err != nil {
		return err
	}
	same := now.Outcome == k.outcome
	k.outcome, k.at = now.Outcome, time.Now()
	if event == "changed" && same {
		return nil
	}
	c := change{Time: time.Now().UTC().Format(time.RFC3339Nano), Event: event, Transaction: now}
	if t.Format == cli.Table {
		return c.text(t.Streams.Out, cli.StyleFor(t.Streams.Out))
	}
	list := &cli.List[change]{Out: t.Streams.Out, Format: cli.JSONL}
	return list.Add(c)
}
