package notifycmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

type waitOptions struct {
	session.Options
}

func newWaitCmd(s *cli.Streams) *cobra.Command {
	o := &waitOptions{}
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until observers have acknowledged every committed change",
		Long: `Wait until observers have acknowledged every change that was committed before the
call, and every change that their own runs made because of it. Then print a
timestamp at which nothing was pending: use it with --at of percctl get and percctl
scan. The command runs no observers: workers do. It does not wait for changes that
are committed later, nor for dead letters, but counts the dead letters.

If a lock of a dead client hides whether its cell has changed, the command resolves
the lock. It reads the metadata of all tables with observers, again and again.

Exit status 5: --timeout expired; the message names what was still pending.`,
		Example: `  percctl notify wait --timeout 10m
  percctl scan documents --at $(percctl notify wait)`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Changes, o.run),
	}
	o.Setup(cmd, s, session.WalkTimeout, cli.ObjectOf[waited]())
	return cmd
}

// A waited is the result of notify wait.
type waited struct {
	TS          tso.Timestamp `json:"ts"`           // timestamp at which nothing was pending
	Time        string        `json:"time"`         // the timestamp as a time
	DeadLetters int           `json:"dead_letters"` // dead letters, which the command did not wait for
}

func (o *waitOptions) run(ctx context.Context, s *session.Session) error {
	last, looked := "no table was read yet", map[string]bool{}
	if _, err := s.AllTables(ctx); err != nil { // it warns of those that were deleted
		return err
	}
	ts, err := notify.Wait(ctx, s.Client(), notify.WaitConfig{Progress: func(u changes.Unfinished) {
		last = pendingWords(u)
		if column := u.Cell.Table + "/" + u.Cell.Column().String(); u.Lock == nil && !u.Ran && !looked[column] {
			looked[column] = true
			idle, err := notRun(ctx, s, u.Cell)
			if err == nil && len(idle) > 0 {
				s.Progress.Event("column %s has changes, and no live worker runs %s", column, strings.Join(idle, ", "))
			}
		}
		s.Progress.Set("waiting: %s", last)
	}})
	s.Progress.End()
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("changes are still pending: %s: %w", last, context.Cause(ctx))
	}
	if err != nil {
		return err
	}
	w := waited{TS: ts, Time: cli.Time(ts)}
	for _, err := range changes.DeadLetters(ctx, s.Client()) {
		if err != nil {
			return err
		}
		w.DeadLetters++
	}
	if w.DeadLetters > 0 {
		fmt.Fprintf(o.Streams.Err, "did not wait for %s: see percctl notify list --dead\n", cli.Count(w.DeadLetters, "dead letter"))
	}
	return o.Print(w, cli.Textf("%v\n", w.TS))
}

// notRun returns the observers of a cell that no live worker runs.
func notRun(ctx context.Context, s *session.Session, cell txn.Cell) ([]string, error) {
	workers, err := admin.Workers(ctx, s.Client())
	if err != nil {
		return nil, err
	}
	col, err := observedColumn(ctx, s, cell)
	return slices.DeleteFunc(slices.Clone(col.Observers), func(id string) bool {
		return slices.ContainsFunc(workers, func(w admin.Worker) bool {
			return w.State == admin.OwnerFresh && slices.Contains(w.Observers, id)
		})
	}), err
}

func pendingWords(u changes.Unfinished) string {
	switch {
	case u.Lock != nil:
		return fmt.Sprintf("%s is locked by the transaction that started at %d", u.Cell, u.TS)
	case u.Ran:
		return fmt.Sprintf("an observer of %s has just run", u.Cell)
	}
	return fmt.Sprintf("%s has a notification of %s", u.Cell, cli.Time(u.TS))
}
