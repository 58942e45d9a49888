// Package topcmd is percctl top: a live view of a deployment.
package topcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
)

// frameTimeout is the default of --timeout, which bounds one frame.
const frameTimeout = 30 * time.Second

// minInterval keeps a view from being a load.
const minInterval = 100 * time.Millisecond

type options struct {
	streams  *cli.Streams
	flags    session.Flags
	picture  picture.Options
	interval time.Duration
	once     bool
	count    int
	format   cli.Format
}

// NewCmd returns the top command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{streams: s}
	cmd := &cobra.Command{
		Use:   "top [TABLE…]",
		Short: "Watch a deployment: rates, locks, observers' lag, the oracle, garbage collection",
		Long: `Watch a deployment, at a terminal until Ctrl-C (exit status 0): the oracle, locks by transaction
with what becomes of them, the oldest lock, conflicts, each observer's backlog and
lag, dead letters, clients that are alive, and the safe point. Without TABLE, all
tables of the deployment. Elsewhere than at a terminal, with --once, and as json or
yaml, it is one frame; with --count so many, jsonl for example.

Rates are what can be seen from outside between two frames, so the first frame has
none: timestamps, requests and hints as the leading server of a served oracle
counts them; locks that are new, and gone; how pending runs of observers change.
What cannot be seen is said at the end of each frame.

It changes nothing. Each frame reads the locks and notifications of the tables,
which is a scan of them: in large tables use a longer --interval, name tables, or
give --prefix. At most --limit locks, and as many notifications, are read for a
frame, and the --transactions oldest are looked at. --timeout bounds one frame; one
that fails at a terminal is said so, and the next is tried.`,
		Example: `  percctl top
  percctl top accounts --prefix user/7 --interval 10s
  percctl top --once -o json
  percctl top --count 30 -o jsonl`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.picture.Tables.Names = args
			if err := o.check(); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	o.flags.Add(cmd, frameTimeout)
	o.picture.Tables.Range.Add(cmd)
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "time between the beginnings of two frames")
	cmd.Flags().BoolVar(&o.once, "once", false, "one frame")
	cmd.Flags().IntVar(&o.count, "count", 0, "so many frames (0: at a terminal until Ctrl-C, elsewhere one)")
	cmd.Flags().IntVar(&o.picture.Locks, "limit", picture.DefaultLimit, "at most so many locks, and notifications, in a frame")
	cmd.Flags().IntVar(&o.picture.Transactions, "transactions", picture.DefaultTransactions, "look at so many transactions with locks, the oldest")
	cli.FormatFlag(cmd, &o.format, cli.Table, cli.JSON, cli.JSONL, cli.YAML)
	cmd.ValidArgsFunction = o.flags.CompleteTables(0)
	return cmd
}

func (o *options) check() error {
	switch {
	case o.interval < minInterval:
		return cli.Usagef("--interval %v: it has to be at least %v", o.interval, minInterval)
	case o.count < 0:
		return cli.Usagef("--count %d: it has to be positive, or 0", o.count)
	case o.once && o.count > 1:
		return cli.Usagef("--once and --count %d: give one or the other", o.count)
	case o.count > 1 && (o.format == cli.JSON || o.format == cli.YAML):
		return cli.Usagef("--count %d: %s is one frame; -o jsonl prints more", o.count, o.format)
	case o.picture.Locks <= 0:
		return cli.Usagef("--limit %d: it has to be positive", o.picture.Locks)
	case o.picture.Transactions <= 0:
		return cli.Usagef("--transactions %d: it has to be positive", o.picture.Transactions)
	}
	o.picture.Notifications = o.picture.Locks
	_, err := o.picture.Tables.Range.Range()
	return err
}

func (o *options) run(ctx context.Context) error {
	live := o.format == cli.Table && !o.once && cli.IsTerminal(o.streams.Out) && os.Getenv("TERM") != "dumb"
	if !live && o.count == 0 {
		o.count = 1
	}
	k, err := picture.Keep(ctx, &o.flags)
	if err != nil {
		return err
	}
	defer k.Close()
	var show func(*picture.Picture, error) error
	if live {
		sc := newScreen(o.streams.Out, o.interval)
		defer sc.close()
		show = sc.show
	} else {
		show = o.print
	}
	err = o.frames(ctx, k, show)
	if live && o.count == 0 && errors.Is(ctx.Err(), context.Canceled) {
		return nil // it is how it ends
	}
	return err
}

// frames takes frames and shows them.
func (o *options) frames(ctx context.Context, k *picture.Keeper, show func(*picture.Picture, error) error) error {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	var before *picture.Picture
	for n := 1; ; n++ {
		p, err := k.Picture(ctx, o.picture)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted after %s: %w", cli.Count(n-1, "frame"), ctx.Err())
		}
		if err == nil {
			p.Since(before)
			before = p
		}
		if err := show(p, err); err != nil {
			return err
		}
		if n == o.count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("interrupted after %s: %w", cli.Count(n, "frame"), ctx.Err())
		}
	}
}

// print prints a frame where there is no terminal to write it again on.
func (o *options) print(p *picture.Picture, err error) error {
	if err != nil {
		return err
	}
	if o.format == cli.JSONL {
		list := cli.List[*picture.Picture]{Out: o.streams.Out, Format: cli.JSONL}
		return list.Add(p)
	}
	width := 0
	if cli.IsTerminal(o.streams.Out) {
		width = cli.Width(o.streams.Out)
	}
	return cli.Print(o.streams.Out, o.format, p, frame{p, width, cli.StyleFor(o.streams.Out)}.text)
}
