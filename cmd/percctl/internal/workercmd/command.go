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
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// NewCmd returns the worker command.
func NewCmd(s *cli.Streams) *cobra.Command {
	return cli.Group("worker", "Show workers and other clients",
		`Show workers and other clients, as their tokens in the metadata table describe them.`,
		newListCmd(s))
}

type listOptions struct {
	session.Options
	observer string
}

func newListCmd(s *cli.Streams) *cobra.Command {
	o := &listOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List clients, alive or dead, with the observers that they run",
		Long: `List the tokens of clients, both workers and clients that only run transactions. A
live client renews its token, which is then fresh. A stale token belongs to a client
that died within the last hour. Other clients resolve its locks when they reach
them, and other workers find its notifications. The list does not have clients that
write no token (txn.Config.TokenTTL negative). The command changes nothing.`,
		Example: `  percctl worker list
  percctl worker list --observer parser -o json`,
		Args: cli.NoArgs,
		RunE: o.Runs(session.Looks, o.run),
	}
	o.Setup(cmd, s, time.Minute, cli.ListOf[worker](csvHeader))
	cmd.Flags().StringVar(&o.observer, "observer", "", "only workers that run this observer")
	session.CompleteFlag(cmd, "observer", o.CompleteObservers(-1))
	return cmd
}

var csvHeader = []string{"owner", "token", "expires_ts", "expires_time", "started_ts", "started_time", "host", "pid", "observers"}

// A worker is a client, as its token describes it.
type worker struct {
	Owner     string           `json:"owner"`                  // id of the client, as in its locks
	Token     admin.OwnerState `json:"token"`                  // state of the client's token
	ExpiresTS tso.Timestamp    `json:"expires_ts"`             // oracle time at which the token becomes or became stale
	Expires   string           `json:"expires_time"`           // expires_ts as a time
	StartedTS tso.Timestamp    `json:"started_ts,omitempty"`   // oracle time at which the client started
	Started   string           `json:"started_time,omitempty"` // started_ts as a time
	Host      string           `json:"host"`                   // host of the client's process
	PID       int64            `json:"pid"`                    // id of the client's process
	Observers []string         `json:"observers"`              // ids of the observers that it runs

	words string // of the token
}

func (o *listOptions) run(ctx context.Context, s *session.Session) error {
	workers, err := admin.Workers(ctx, s.Client())
	if err != nil {
		return err
	}
	now, err := s.Now(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(workers, func(a, b admin.Worker) int { return strings.Compare(a.Owner, b.Owner) })
	list := &cli.List[worker]{
		Out: o.Streams.Out, Format: o.Format,
		Header: csvHeader,
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
		if w.State == admin.OwnerFresh {
			fresh++
		} else {
			p.words = "stale for " + cli.Between(w.ExpiresTS, max(now, w.ExpiresTS))
		}
		if err := list.Add(p); err != nil {
			return err
		}
	}
	if err := list.End(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(o.Streams.Err, "%s, %d fresh\n", cli.Count(shown, "token"), fresh)
	return err
}
