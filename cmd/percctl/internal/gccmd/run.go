package gccmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

type runOptions struct {
	session.Options
	gc       gcFlags
	restart  bool
	lockWait time.Duration
	watch    bool
	interval time.Duration
	full     time.Duration
}

func newRunCmd(s *cli.Streams) *cobra.Command {
	o := &runOptions{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Remove old versions, once or at an interval",
		Long: `Move the safe point, resolve every lock at or below it, and remove the versions
that no reader can see any more. After it has moved the safe point, the command
waits two minutes before it removes anything, until every client knows the new
safe point.

` + cli.AsksFirst + `

With --yes it skips the plan, which would read every table once more. If you
interrupt a run, the next one continues. No run rolls back a live transaction: if one
still blocks it after --lock-wait, the run stops before it removes anything.

With --watch it runs once per --interval, and reads every row once per --full-every,
otherwise rows that clients noted as changed. Several collectors share each run.

Exit status 4: a transaction or a collector blocks the run, or rows were skipped.`,
		Example: `  percctl gc run --retention 72h --rate 5000 --yes
  percctl gc run --watch --interval 6h --yes -o jsonl`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout)
	o.gc.add(cmd, &o.Checks)
	cmd.Flags().BoolVar(&o.restart, "restart", false, "start from the beginning instead of continuing an interrupted run")
	cmd.Flags().DurationVar(&o.lockWait, "lock-wait", time.Minute, "how long to wait for live transactions that block the run (0: do not wait)")
	cmd.Flags().BoolVar(&o.watch, "watch", false, "run again after each --interval, until interrupted")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Hour, "with --watch: time from the end of the last run, by any collector, to the next")
	cmd.Flags().DurationVar(&o.full, "full-every", 7*24*time.Hour, "with --watch: time between runs that read every row (0: every run)")
	o.Consent.Add(cmd)
	cli.AtLeast(&o.Checks, "lock-wait", &o.lockWait, 0, "positive, or 0 to not wait")
	cli.AtLeast(&o.Checks, "interval", &o.interval, 1, "positive")
	cli.AtLeast(&o.Checks, "full-every", &o.full, 0, "positive, or 0 to read every row in every run")
	o.Require(o.check)
	cli.FormatFlag(cmd, &o.Format, cli.Table, cli.JSON, cli.JSONL, cli.YAML)
	cli.Prints(cmd, cli.ObjectOf[report]())
	return cmd
}

func (o *runOptions) check() error {
	if o.watch && o.Consent.DryRun {
		return cli.Usagef("--watch and --dry-run: use only one of them; a plan is shown once")
	}
	return nil
}

func (o *runOptions) config(ctx context.Context, s *session.Session) gc.Config {
	cfg := o.gc.config()
	cfg.Restart, cfg.LockWait, cfg.Progress = o.restart, o.lockWait, progress(ctx, s)
	if o.watch {
		cfg.FullEvery = o.full
	}
	if o.lockWait == 0 {
		cfg.LockWait = -1
	}
	return cfg
}

func (o *runOptions) run(ctx context.Context, s *session.Session) error {
	if o.Consent.DryRun || !o.Consent.Yes {
		p, err := plan(ctx, s, &o.Flags, o.config(ctx, s))
		if err != nil {
			return err
		}
		if o.Consent.DryRun {
			return cmp.Or(o.print(p), verdict(p.Report, nil))
		}
		question := fmt.Sprintf("Move the safe point and remove %s in %s?", cli.Count(p.Total.Cells, "cell"), s.Where)
		if ok, err := o.Ask(ctx, p, p.text, question); !ok {
			return err
		}
	}
	if o.watch {
		return o.watchOver(ctx, s)
	}
	return o.once(ctx, s)
}

// once runs one collection and prints what it did, also if it did not finish.
func (o *runOptions) once(ctx context.Context, s *session.Session) error {
	r, err := gc.Run(ctx, s.Client(), o.config(ctx, s))
	s.Progress.End()
	if r == nil {
		return verdict(nil, err)
	}
	if perr := o.print(newReport(&o.Flags, r, err)); perr != nil {
		return perr
	}
	if ctx.Err() != nil && r.SafePoint > 0 {
		return fmt.Errorf("interrupted after %s removed; the next run continues: %w", cli.Count(r.Total.Cells, "cell"), err)
	}
	return verdict(r, err)
}

// watchOver runs collections until interrupted. It prints the error of one that
// fails, and retries.
func (o *runOptions) watchOver(ctx context.Context, s *session.Session) error {
	for {
		wait, err := o.due(ctx, s)
		if err == nil && wait <= 0 {
			err = o.once(ctx, s)
			wait = o.interval
		}
		if ctx.Err() != nil {
			return err
		}
		var usage *cli.Error
		if errors.As(err, &usage) && usage.Code == cli.ExitUsage || errors.Is(err, txn.ErrInvalid) {
			return err
		}
		if err != nil {
			wait = min(o.interval, time.Minute)
			var busy *gc.BusyError
			if errors.As(err, &busy) {
				wait = min(o.interval, max(busy.Left, time.Second))
			}
			fmt.Fprintf(o.Streams.Err, "%s; retrying in %s\n", cli.Line(err.Error()), cli.Duration(wait))
		}
		fmt.Fprintf(o.Streams.Err, "next run in %s\n", cli.Duration(wait))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("interrupted between two runs: %w", ctx.Err())
		}
	}
}

// due is how long the next collection can wait: an interval from the end of the
// last one, by any collector. One that was interrupted continues at once.
func (o *runOptions) due(ctx context.Context, s *session.Session) (time.Duration, error) {
	st, err := gc.ReadStatus(ctx, s.Client())
	if err != nil || st.Run.Phase != gc.PhaseDone {
		return 0, err
	}
	return o.interval - st.Now.Sub(st.Run.UpdatedTS), nil
}

func (o *runOptions) print(r *report) error {
	if o.Format == cli.JSONL {
		list := &cli.List[*report]{Out: o.Streams.Out, Format: cli.JSONL}
		return errors.Join(list.Add(r), list.End())
	}
	return o.Print(r, r.text)
}
