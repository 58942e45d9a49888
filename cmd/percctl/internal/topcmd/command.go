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
	"github.com/percolator-bigtable/percolator/txn/admin/watch"
)

// frameTimeout is the default of --timeout, which bounds one frame.
const frameTimeout = 30 * time.Second

// minInterval keeps a view from being a load.
const minInterval = 100 * time.Millisecond

type options struct {
	session.Options
	picture  picture.Options
	limits   picture.Limits
	interval time.Duration
	once     bool
	count    int
}

// NewCmd returns the top command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "top [TABLE…]",
		Short: "Watch a deployment: rates, locks, observers, the oracle, garbage collection",
		Long: `Watch a deployment: the oracle, locks by transaction with what resolving them would
do, the oldest lock, conflicts, the backlog and lag of each observer, dead letters,
live clients, and the safe point. Without TABLE, the command watches all tables of
the deployment.

At a terminal it shows a new frame every --interval, until Ctrl-C (exit status 0).
Without a terminal, with --once, and with -o json or -o yaml, it prints one frame;
--count prints that many, for example with -o jsonl.

Rates are differences between two frames, so the first frame has none. They are:
timestamps, requests and Bigtable writes, as the leading server of a served oracle
counts them; new and removed locks; the change of pending notifications. Each
frame ends with what the command cannot see.

The command changes nothing. At a terminal it reads little at a time: rows with locks or
notifications again and again, and all other rows in turn, within --max-requests and
--max-bytes. The frame says how old its oldest part is. Until the first pass over all
rows has ended, it says "at least". If a request fails, the screen says why, and the
command continues.

Without a terminal each frame reads all rows of the tables at once, without these limits.
In large tables name tables, or add --prefix. --timeout is per frame there, and per read
at a terminal. A frame has at most --limit locks and as many notifications; if there are
more, it says "at least".`,
		Example: `  percctl top
  percctl top accounts --prefix user/7 --interval 10s
  percctl top --once -o json
  percctl top --count 30 -o jsonl`,
		RunE: o.RunsAlone(o.run),
	}
	o.Setup(cmd, s, frameTimeout)
	cmd.Flags().DurationVar(&o.interval, "interval", 2*time.Second, "time from the start of a frame to the start of the next")
	cmd.Flags().BoolVar(&o.once, "once", false, "print one frame")
	cmd.Flags().IntVar(&o.count, "count", 0, "number of frames (0: at a terminal until Ctrl-C, otherwise one)")
	o.picture.Add(cmd, &o.Options, "frame", 20)
	o.limits.Add(cmd, &o.Options)
	cli.AtLeast(&o.Checks, "interval", &o.interval, minInterval, fmt.Sprintf("at least %v", minInterval))
	cli.AtLeast(&o.Checks, "count", &o.count, 0, "positive, or 0")
	o.Require(o.check)
	cli.FormatFlag(cmd, &o.Format, cli.Table, cli.JSON, cli.JSONL, cli.YAML)
	cli.Prints(cmd, cli.ObjectOf[picture.Picture]())
	return cmd
}

func (o *options) check() error {
	switch {
	case o.once && o.count > 1:
		return cli.Usagef("--once and --count %d: use only one of them", o.count)
	case o.count > 1 && (o.Format == cli.JSON || o.Format == cli.YAML):
		return cli.Usagef("--count %d: -o %s prints one frame; use -o jsonl", o.count, o.Format)
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	live := o.Format == cli.Table && !o.once && cli.IsTerminal(o.Streams.Out) && os.Getenv("TERM") != "dumb"
	if !live && o.count == 0 {
		o.count = 1
	}
	meter := &watch.Meter{}
	o.Connect.Options = meter.DialOptions()
	k, err := picture.Keep(ctx, &o.Flags)
	if err != nil {
		return err
	}
	defer k.Close()
	scanner := picture.NewScanner(k, o.picture, meter, o.limits)
	if !live {
		return o.frames(ctx, scanner.Complete, o.print)
	}
	scanner.Refresh = o.interval
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go scanner.Run(ctx)
	sc := newScreen(o.Streams.Out, o.interval)
	defer sc.close()
	err = o.frames(ctx, scanner.Picture, sc.show)
	if o.count == 0 && errors.Is(ctx.Err(), context.Canceled) {
		return nil // it is how it ends
	}
	return err
}

// frames takes frames and shows them.
func (o *options) frames(ctx context.Context, take func(context.Context) (*picture.Picture, error), show func(*picture.Picture, error) error) error {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		p, err := take(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted after %s: %w", cli.Count(n-1, "frame"), ctx.Err())
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
	if o.Format == cli.JSONL {
		list := cli.List[*picture.Picture]{Out: o.Streams.Out, Format: cli.JSONL}
		return list.Add(p)
	}
	width := 0
	if cli.IsTerminal(o.Streams.Out) {
		width = cli.Width(o.Streams.Out)
	}
	return o.Print(p, frame{p, width, cli.StyleFor(o.Streams.Out)}.text)
}
