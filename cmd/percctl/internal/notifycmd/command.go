// Package notifycmd is percctl notify: what observers have still to do, what
// they have failed at, and giving it another try.
package notifycmd

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// Defaults of --timeout: a few cells should not take long; a walk over tables
// may take as long as it takes.
const (
	pointTimeout = time.Minute
	walkTimeout  = 0
)

// NewCmd returns the notify command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("notify", "Look after notifications of observers and dead letters",
		`Look after notifications of observers and dead letters.

A commit of an observed column leaves a notification, until every observer of the
column has acknowledged the change. An observer that fails is run again later and
later; what it has failed at too often becomes a dead letter, which is in nobody's
way until it is replayed or dropped. docs/operations.md says what to do when
something is stuck.`,
		newListCmd(s), newWaitCmd(s), newReplayCmd(s), newParkCmd(s), newDropCmd(s), newSendCmd(s), newBackfillCmd(s))
}

// observerFlag adds --observer with its completion.
func observerFlag(cmd *cobra.Command, flags *session.Flags, id *string, usage string) {
	cmd.Flags().StringVar(id, "observer", "", usage)
	// It fails only where the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("observer", flags.CompleteObservers(-1))
}

// parseCells reads the arguments CELL….
func parseCells(args []string) ([]txn.Cell, error) {
	var cells []txn.Cell
	for _, a := range args {
		c, err := parseCell(a)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(cells, c) {
			cells = append(cells, c)
		}
	}
	return cells, nil
}

func parseCell(arg string) (txn.Cell, error) {
	c, err := session.ParseCell(arg)
	if err == nil && c.Family == txn.AckFamily {
		return c, cli.Usagef("cell %s: family %s belongs to the transaction metadata", c, c.Family)
	}
	return c, err
}

// observedColumn finds a cell's column in the registry. Exit status 3 where it
// is not there.
func observedColumn(ctx context.Context, s *session.Session, cell txn.Cell) (txn.ObservedColumn, error) {
	return session.Observed(ctx, s, notify.Column{Table: cell.Table, Family: cell.Family, Qualifier: cell.Qualifier})
}

// checkRegistered says when a column has no such observer.
func checkRegistered(col txn.ObservedColumn, id string) error {
	if !slices.Contains(col.Observers, id) {
		return session.NotFoundf("no observer %q is registered for column %s of table %s; its observers are %s", id, col.Column, col.Table, strings.Join(col.Observers, ", "))
	}
	return nil
}

// ago is how long before now ts was, for people.
func ago(ts, now tso.Timestamp) string {
	return cli.Duration(time.Duration(max(now-ts, 0)) * time.Microsecond)
}

func seconds(d tso.Timestamp) float64 {
	return (time.Duration(d) * time.Microsecond).Seconds()
}
