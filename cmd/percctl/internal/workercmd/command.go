// Package workercmd is percctl worker: the clients of a deployment, as their
// tokens show them.
package workercmd

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// NewCmd returns the worker command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("worker", "Look at workers and other clients",
		`Look at workers and other clients, as their tokens in the metadata table show them.`,
		newListCmd(s))
}

type listOptions struct {
	streams  *cli.Streams
	flags    session.Flags
	observer string
	format   cli.Format
}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{streams: s}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tokens of clients, alive or not, with the observers they run",
		Long: `List the tokens of clients: those that run observers, and those that only run
transactions. A fresh token is renewed by a client that is alive; a stale one was
left by a client that died, within the last hour: its locks are settled by whoever
meets them, and its notifications are found by the other workers. Clients that
write no token are not listed. It changes nothing.`,
		Example: `  percctl worker list
  percctl worker list --observer parser -o json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.flags.Run(cmd.Context(), s, session.Looks, txn.Config{}, o.run)
		},
	}
	o.flags.Add(cmd, time.Minute)
	cmd.Flags().StringVar(&o.observer, "observer", "", "only workers that run this observer")
	// It fails only where the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("observer", o.flags.CompleteObservers(-1))
	cli.FormatFlag(cmd, &o.format, cli.ListFormats...)
	return cmd
}

// A worker is a token as it is printed.
type worker struct {
	Owner     string         `json:"owner"`
	Token     txn.OwnerState `json:"token"` // fresh or stale
	ExpiresTS tso.Timestamp  `json:"expires_ts"`
	Expires   string         `json:"expires_time"`
	StartedTS tso.Timestamp  `json:"started_ts,omitempty"`
	Started   string         `json:"started_time,omitempty"`
	Host      string         `json:"host"`
	PID       int64          `json:"pid"`
	Observers []string       `json:"observers"`

	words string // of the token
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	workers, err := s.Client().Workers(ctx)
	if err != nil {
		return err
	}
	now, err := s.Client().Timestamp(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(workers, func(a, b txn.Worker) int { return strings.Compare(a.Owner, b.Owner) })
	list := &cli.List[worker]{
		Out: o.streams.Out, Format: o.format,
		Header: []string{"owner", "token", "expires_ts", "expires_time", "started_ts", "started_time", "host", "pid", "observers"},
		Rows: func(w worker) [][]string {
			return [][]string{{w.Owner, string(w.Token), w.ExpiresTS.String(), w.Expires, w.StartedTS.String(), w.Started, w.Host, strconv.FormatInt(w.PID, 10), strings.Join(w.Observers, " ")}}
		},
		TableHeader: []string{"OWNER", "TOKEN", "STARTED", "HOST", "PID", "OBSERVERS"},
		TableRows: func(w worker) [][]string {
			observers := strings.Join(w.Observers, " ")
			if observers == "" {
				observers = "-"
			}
			return [][]string{{w.Owner, w.words, w.Started, w.Host, strconv.FormatInt(w.PID, 10), observers}}
		},
	}
	fresh, shown := 0, 0
	for _, w := range workers {
		if o.observer != "" && !slices.Contains(w.Observers, o.observer) {
			continue
		}
		shown++
		p := worker{
			Owner: cli.Line(w.Owner), Token: w.State, ExpiresTS: w.ExpiresTS, Expires: cli.Time(w.ExpiresTS), StartedTS: w.StartedTS,
			Started: cli.Time(w.StartedTS), Host: cli.Line(w.Host), PID: w.PID, Observers: append([]string{}, w.Observers...),
		}
		p.words = "fresh"
		if w.State == txn.OwnerFresh {
			fresh++
		} else {
			p.words = "stale for " + cli.Duration(time.Duration(max(now-w.ExpiresTS, 0))*time.Microsecond)
		}
		if err := list.Add(p); err != nil {
			return err
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.streams.Err, "%s, %d fresh\n", cli.Count(shown, "token"), fresh)
	return err
}
