// Package notifycmd is percctl notify: notifications that observers have not
// acknowledged, and dead letters.
package notifycmd

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// NewCmd returns the notify command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("notify", "Inspect and manage notifications and dead letters",
		`Inspect and manage notifications and dead letters.

A commit to an observed column leaves a notification, which stays until every
observer of the column has acknowledged the change. If an observer fails, its
workers retry it with growing delays. After too many failures the change becomes a
dead letter: it blocks nothing, and waits until you replay or drop it.
docs/operations.md says what to do if observers are stuck.`,
		newListCmd(s), newWaitCmd(s), newReplayCmd(s), newParkCmd(s), newDropCmd(s), newSendCmd(s), newBackfillCmd(s))
}

// observerFlag adds --observer with its completion.
func observerFlag(cmd *cobra.Command, flags *session.Flags, id *string, usage string) {
	cmd.Flags().StringVar(id, "observer", "", usage)
	session.CompleteFlag(cmd, "observer", flags.CompleteObservers(-1))
}

// required is the condition that --observer was given.
func required(observer *string) func() error {
	return func() error {
		if *observer == "" {
			return cli.Usagef("no observer: add --observer ID")
		}
		return nil
	}
}

// cellArgs reads the arguments CELL….
func cellArgs(cells *[]txn.Cell) func([]string) error {
	return func(args []string) error {
		for _, a := range args {
			c, err := parseCell(a)
			if err != nil {
				return err
			}
			if !slices.Contains(*cells, c) {
				*cells = append(*cells, c)
			}
		}
		return nil
	}
}

func parseCell(arg string) (txn.Cell, error) {
	c, err := session.ParseCell(arg)
	if err == nil && c.Family == format.AckFamily {
		return c, cli.Usagef("cell %s: family %s holds transaction metadata; name a data family", c, c.Family)
	}
	return c, err
}

// observedColumn finds a cell's column in the registry. Exit status 3 where it
// is not there.
func observedColumn(ctx context.Context, s *session.Session, cell txn.Cell) (changes.ObservedColumn, error) {
	return session.Observed(ctx, s, cell.Table, cell.Column())
}

// ago is how long before now ts was, for people.
func ago(ts, now tso.Timestamp) string {
	return cli.Between(ts, max(now, ts))
}

func seconds(d tso.Timestamp) float64 {
	return (time.Duration(d) * time.Microsecond).Seconds()
}
