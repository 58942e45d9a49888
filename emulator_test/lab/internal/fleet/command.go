// Package fleet is the command lab fleet. It runs a deployment with telemetry in which
// everything that can happen does, again and again, for a dashboard or a test to look at.
//
// The coordinator (fleet.go) starts servers of timestamps (oracles.go) and workers
// (processes.go), which run the observers of docs/examples/index and one that fails.
// Meanwhile it changes documents (rounds.go), writes one cell from several places
// (visits.go), and collects garbage. In the end it compares the index with a batch
// computation and checks every table.
package fleet

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
)

const (
	maxWorkers   = 64
	maxDocuments = 100_000

	failoversEvery = 8 * time.Second
	lossesEvery    = 2 * time.Second
	gcEvery        = 2 * time.Second // from the end of one run to the start of the next

	// shorterGC divides the durations of garbage collection: its fence takes two
	// seconds instead of two minutes.
	shorterGC = 60
	retention = 10 * time.Second

	// endTimeout bounds the time until the locks of killed processes can be resolved,
	// after lockTTL at the latest.
	endTimeout = 10 * lockTTL
)

type options struct {
	workers, documents int
	seed               uint64
	duration           time.Duration
	format             cli.Format
}

// NewCmd returns the fleet command.
func NewCmd(s *cli.Streams) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Run a deployment in which everything happens, to look at its telemetry",
		Long: `Run a deployment in which everything that can happen does, again and again, to look
at its metrics and traces. Workers run the observers of docs/examples/index.
Meanwhile documents change, and an observer fails on some of them. Workers are killed
in the middle of a run. Answers of Bigtable are lost. The leading server of timestamps
is killed or stopped. Transactions conflict over one cell. Clients die in rows that
no other client reads. Garbage is collected, with its durations divided by 60.

In the end the command compares the index with a batch computation of the same
documents, resolves all locks, runs the consistency check over all tables, and counts
the notifications that are left.

With OTEL_METRICS_EXPORTER=prometheus the coordinator serves /metrics on port 9464,
worker N on port 9464+N, and the two servers of timestamps on the next two ports.
docs/observability.md names the other variables, the dashboard and the alerts.

Exit status 4: the comparison or a check found something.`,
		Example: `  OTEL_METRICS_EXPORTER=prometheus lab fleet --duration 10m`,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, s) },
	}
	f := cmd.Flags()
	f.IntVar(&o.workers, "workers", 4, "number of worker processes")
	f.IntVar(&o.documents, "documents", 200, "number of documents")
	f.DurationVar(&o.duration, "duration", time.Minute, "how long documents change and processes are killed")
	f.Uint64Var(&o.seed, "seed", 0, "choose the changes with this seed (0: random)")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	cmd.AddCommand(newProcessCmd(s))
	return cmd
}

func (o *options) complete() error {
	switch {
	case o.workers < 1 || o.workers > maxWorkers:
		return cli.Usagef("--workers %d: it has to be between 1 and %d", o.workers, maxWorkers)
	case o.documents < 1 || o.documents > maxDocuments:
		return cli.Usagef("--documents %d: it has to be between 1 and %d", o.documents, maxDocuments)
	case o.duration <= 0:
		return cli.Usagef("--duration %v: it has to be positive", o.duration)
	}
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	return nil
}

// A summary is what -o json prints.
type summary struct {
	Seed              uint64 `json:"seed"`
	Rounds            int    `json:"rounds"`         // of changes
	WorkersKilled     int64  `json:"workers_killed"` // in the middle of a run
	LeadersKilled     int    `json:"leaders_killed"`
	LeadersStopped    int    `json:"leaders_stopped"`
	Visits            int64  `json:"visits"`        // transactions that write one cell
	VisitorsLost      int    `json:"visitors_lost"` // clients that died in rows that no other client reads
	GCRuns            int    `json:"gc_runs"`
	VersionsReclaimed int64  `json:"versions_reclaimed"`
	DeadLetters       int    `json:"dead_letters"` // of documents that are malformed on purpose
	NotificationsLeft int    `json:"notifications_left"`
	Violations        int    `json:"violations"` // found by the consistency check of all tables
	Mismatches        int    `json:"mismatches"` // against the batch computation, and wrong counts of visits
}

func (s *summary) text(w io.Writer) error {
	table := cli.NewTable(w)
	row := func(name string, n any, note string) { cli.WriteRow(table, name, fmt.Sprint(n), note) }
	row("rounds", s.Rounds, "of changes")
	row("workers killed", s.WorkersKilled, "in the middle of a run")
	row("failovers", s.LeadersKilled+s.LeadersStopped, fmt.Sprintf("of the oracle: %d leaders killed, %d stopped", s.LeadersKilled, s.LeadersStopped))
	row("visits", s.Visits, fmt.Sprintf("counted in one cell; %d visitors died on the way", s.VisitorsLost))
	row("dead letters", s.DeadLetters, "of documents that are malformed on purpose")
	row("collections", s.GCRuns, fmt.Sprintf("of garbage, %d versions reclaimed", s.VersionsReclaimed))
	row("notifications left", s.NotificationsLeft, "")
	row("violations", s.Violations, "found by the consistency check of all tables")
	row("mismatches", s.Mismatches, "against a batch computation")
	return table.Flush()
}

func run(ctx context.Context, o *options, s *cli.Streams) error {
	if err := o.complete(); err != nil {
		return err
	}
	f := &fleet{opts: o, streams: s, sum: summary{Seed: o.seed}}
	if err := f.run(ctx); err != nil {
		return err
	}
	if err := cli.Print(s.Out, o.format, &f.sum, f.sum.text); err != nil {
		return err
	}
	if f.sum.Violations+f.sum.Mismatches+f.sum.NotificationsLeft > 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d violations, %d mismatches and %d notifications left, with --seed %d", f.sum.Violations, f.sum.Mismatches, f.sum.NotificationsLeft, o.seed)}
	}
	return nil
}
