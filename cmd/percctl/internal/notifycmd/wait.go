package notifycmd

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

type waitOptions struct {
	streams *cli.Streams
	flags   session.Flags
	format  cli.Format
}

func newWaitCmd(s *cli.Streams) *cobra.Command {
	o := &waitOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until observers are done with all that is committed",
		Long: `Wait until every change that was committed before the call, and everything that
observers have caused by it, is acknowledged; then print the timestamp at which
nothing was left to do, for --at of get and scan. It runs no observer itself:
workers do. Changes that are committed meanwhile are not waited for, and neither
are dead letters, which are counted.

It settles locks of dead clients that hide what became of their cells. Each look
reads the metadata of all tables with observers. Exit status 5: --timeout is over.`,
		Example: `  percctl notify wait --timeout 10m
  percctl scan documents --at $(percctl notify wait)`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.flags.Run(cmd.Context(), s, session.Changes, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, walkTimeout)
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	return cmd
}

// waited is what wait prints.
type waited struct {
	TS          tso.Timestamp `json:"ts"`
	Time        string        `json:"time"`
	DeadLetters int           `json:"dead_letters"`
}

func (o *waitOptions) run(ctx context.Context, s *session.Session) error {
	last := "nothing was looked at yet"
	ts, err := notify.Wait(ctx, s.Client(), notify.WaitConfig{Progress: func(u txn.Unfinished) {
		last = inTheWay(u)
		s.Progress.Set("waiting: %s", last)
	}})
	s.Progress.End()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("not everything is done; %s: %w", last, context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	w := waited{TS: ts, Time: cli.Time(ts)}
	for _, err := range s.Client().DeadLetters(ctx) {
		if err != nil {
			return err
		}
		w.DeadLetters++
	}
	if w.DeadLetters > 0 {
		fmt.Fprintf(o.streams.Err, "%s not waited for: percctl notify list --dead\n", cli.Count(w.DeadLetters, "dead letter"))
	}
	return cli.Print(o.streams.Out, o.format, w, func(out io.Writer) error {
		_, err := fmt.Fprintln(out, w.TS)
		return err
	})
}

func inTheWay(u txn.Unfinished) string {
	switch {
	case u.Lock != nil:
		return fmt.Sprintf("%s is locked by the transaction that started at %d", u.Cell, u.TS)
	case u.Ran:
		return fmt.Sprintf("an observer of %s has just run", u.Cell)
	}
	return fmt.Sprintf("%s has a notification of %s", u.Cell, cli.Time(u.TS))
}
