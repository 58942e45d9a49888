// Package soak is the command lab soak. It runs workloads in many processes while
// requests are lost and processes are killed, in many short histories, and checks each
// history.
package soak

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

type options struct {
	workload, oracle, faultList, history, gc string
	duration, each                           time.Duration
	histories, parallel                      int
	clients, workers                         int
	seed                                     uint64
	share                                    float64
	format                                   cli.Format

	faults faultSet
}

// NewCmd returns the soak command.
func NewCmd(s *cli.Streams) *cobra.Command {
	var names []string
	for _, w := range workload.All() {
		names = append(names, w.Name)
	}
	o := &options{}
	cmd := &cobra.Command{
		Use:   "soak",
		Short: "Run workloads under faults, and check their histories",
		Long: `Run workloads in several processes while requests are lost, duplicated and delayed and
processes are killed and stopped. Then check the results.

A soak makes many histories, several at the same time. Each history has its own emulator
and clients. Every other one also has servers of the timestamp oracle, and two processes
that request tens of thousands of timestamps a second. Workers form groups; those of a
group use the same few keys, and change to new keys every few seconds. At the end
of a history all faults stop, all locks are resolved and all observers run. Then come
the consistency check, the checks of the history (by timestamps, and by cycles), the
workload's own invariant, and a check that timestamps are unique and in order.

Faults: kill (SIGKILL of clients), stop (SIGSTOP of clients, for longer than their
locks' ttl), server (SIGSTOP of the emulator), rpc (requests that are lost before or
after they are applied, duplicated, delayed, sent again later, slow, cut short or done in part, and
callers that give up), oracle (SIGKILL and SIGSTOP of oracle servers), clock (clocks
that are wrong by up to an hour, and jump), net (connections that are reset, half-open
or slow).

Workers also vary how they read and write: transactions that only read may be snapshots,
which may be stale, and read many cells at once. Observers fail now and then; clients replay their dead letters. In every
fourth history (--gc) clients collect garbage, with all times of garbage collection
divided by 15, and requests may be up to 15 s late.

Standard error gets one line for each history. The summary ends with the goals for
an hour with all faults, and what this soak would reach in an hour.

The seed makes all choices: what clients request, and which request or process gets
which fault. But the operating system decides when things happen, so the same seed
does not always give the same interleaving. Each finding is printed with its history's
seed and the command that repeats the history.

Exit status 4 means that the soak found something.`,
		Example: `  lab soak --duration 10m
  lab soak --workload append --duration 60s --faults all --history run.jsonl -o json
  lab soak --workload bank --oracle served --faults kill,oracle --seed 7 --histories 1
  lab soak --duration 60m --faults all`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), o, s) },
	}
	f := cmd.Flags()
	f.StringVar(&o.workload, "workload", "all", "all in turn, or a list of "+strings.Join(names, ", "))
	f.StringVar(&o.faultList, "faults", "all", "all, none, or a list of "+strings.Join(faultGroups, ", "))
	f.StringVar(&o.oracle, "oracle", "both", "direct, served, or both in turn")
	f.StringVar(&o.gc, "gc", "some", "garbage collection in some histories (every fourth), all or none; these take at least 75s")
	f.DurationVar(&o.duration, "duration", time.Minute, "how long the soak begins new histories")
	f.DurationVar(&o.each, "each", 15*time.Second, "how long clients work in each history")
	f.IntVar(&o.histories, "histories", 0, "number of histories (0: as many as --duration allows)")
	f.IntVar(&o.parallel, "parallel", 4, "concurrent histories, each with its own emulator")
	f.IntVar(&o.clients, "clients", 3, "concurrent client processes in each history")
	f.IntVar(&o.workers, "workers", 8, "concurrent transactions in each client")
	f.Uint64Var(&o.seed, "seed", 0, "seed of all choices (0: random)")
	f.Float64Var(&o.share, "share", 0.02, "share of requests that get a fault")
	f.StringVar(&o.history, "history", "", "write the history to this file as lines of JSON; the soak then makes one history of the whole duration")
	cli.FormatFlag(cmd, &o.format, cli.ObjectFormats...)
	_ = cmd.MarkFlagFilename("history") // fails only if the flag does not exist
	cmd.AddCommand(newProcessCmd(s))
	return cmd
}

// complete checks the options and returns the workloads.
func (o *options) complete() (loads []*workload.Workload, err error) {
	if o.faults, err = parseFaults(o.faultList); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(o.workload, ",") {
		w := workload.Named(name)
		switch {
		case name == "all":
			// Observers twice, because changes need time to be observed.
			loads = append(loads, append(workload.All(), workload.Observers())...)
		case w == nil:
			return nil, cli.Usagef("--workload %s: there is none of that name; lab soak --help lists them", name)
		default:
			loads = append(loads, w)
		}
	}
	switch {
	case !slices.Contains([]string{"direct", "served", "both"}, o.oracle):
		return nil, cli.Usagef("--oracle %s: it has to be direct, served or both", o.oracle)
	case !slices.Contains([]string{"some", "all", "none"}, o.gc):
		return nil, cli.Usagef("--gc %s: it has to be some, all or none", o.gc)
	case o.duration <= 0:
		return nil, cli.Usagef("--duration %v: it has to be positive", o.duration)
	case o.each <= 0:
		return nil, cli.Usagef("--each %v: it has to be positive", o.each)
	case o.histories < 0:
		return nil, cli.Usagef("--histories %d: it has to be positive, or 0 for as many as --duration allows", o.histories)
	case o.parallel < 1 || o.parallel > 64:
		return nil, cli.Usagef("--parallel %d: it has to be between 1 and 64", o.parallel)
	case o.clients < 1 || o.clients > 64:
		return nil, cli.Usagef("--clients %d: it has to be between 1 and 64", o.clients)
	case o.workers < 1 || o.workers > 64:
		return nil, cli.Usagef("--workers %d: it has to be between 1 and 64", o.workers)
	case !(o.share >= 0 && o.share <= 1):
		return nil, cli.Usagef("--share %v: it has to be between 0 and 1", o.share)
	case o.history != "" && o.histories > 1:
		return nil, cli.Usagef("--history writes one history; leave --histories out")
	}
	if o.history != "" {
		o.histories, o.each = 1, o.duration
	}
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000_000)
	}
	return loads, nil
}

// seedOf returns the seed of the i-th history. The first has the soak's seed, so that a
// history's own seed and --histories 1 repeat it.
func (o *options) seedOf(i int) uint64 {
	if i == 0 {
		return o.seed
	}
	return rand.New(rand.NewPCG(o.seed, uint64(i))).Uint64N(1_000_000_000) + 1
}

func run(ctx context.Context, o *options, s *cli.Streams) error {
	loads, err := o.complete()
	if err != nil {
		return err
	}
	txntest.ShortenGC(gcFaster)
	var file io.WriteCloser
	if o.history != "" {
		if file, err = os.Create(o.history); err != nil {
			return err
		}
		defer file.Close()
	}
	fmt.Fprintf(s.Err, "seed %d; %s\n", o.seed, o.replay(o.workload, o.oracle, o.gc, o.seed, ""))
	began := time.Now()
	sum := &summary{Seed: o.seed, Faults: map[string]int{}, Used: map[string]int{}}
	ended := o.makeAll(ctx, loads, func(i int, r *result) error {
		sum.add(r)
		r.write(s.Err, i+1, o, time.Since(began))
		switch {
		case file != nil:
			if err := write(file, r.records); err != nil {
				return fmt.Errorf("writing %s: %w", o.history, err)
			}
		case len(r.anomalies)+len(r.violations) > 0:
			// The same seed may not find it again.
			return keep(s.Err, r)
		}
		return nil
	})
	if ended != nil && sum.Histories == 0 {
		return ended
	}
	// There is a summary even if the soak was interrupted, or a history could not start.
	sum.Seconds = time.Since(began).Seconds()
	sum.finish()
	sum.Missing = append([]string{}, o.missing(sum, len(loads))...)
	if err := cli.Print(s.Out, o.format, sum, sum.text); err != nil {
		return err
	}
	if len(sum.Missing) > 0 && sum.Anomalies+sum.Violations == 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("the soak had none of these: %s", strings.Join(sum.Missing, ", "))}
	}
	if sum.Anomalies+sum.Violations > 0 {
		return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%s and %s", plural(sum.Anomalies, "anomaly", "anomalies"), plural(sum.Violations, "violation", "violations"))}
	}
	return ended
}

// makeAll makes the histories, several at the same time. It calls done with each, one
// at a time. The first error ends all of them.
func (o *options) makeAll(ctx context.Context, loads []*workload.Workload, done func(int, *result) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	var mu sync.Mutex
	next := 0
	var making sync.WaitGroup
	for range o.parallel {
		making.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if ctx.Err() != nil || o.histories > 0 && i >= o.histories || o.histories != 1 && time.Since(began) >= o.duration {
					return
				}
				load := loads[i%len(loads)]
				served := o.oracle == "served" || o.oracle == "both" && o.seedOf(i)%2 == 1
				collects := o.gc == "all" || o.gc == "some" && i%4 == 3
				r, err := runEpisode(ctx, o, load, served, collects, o.seedOf(i), o.each)
				if err != nil {
					cancel(fmt.Errorf("history %d (%s, seed %d): %w", i+1, load.Name, o.seedOf(i), err))
					return
				}
				mu.Lock()
				err = done(i, r)
				mu.Unlock()
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	making.Wait()
	return context.Cause(ctx)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// keep writes the history of a finding to a new file, and prints its name to w.
func keep(w io.Writer, r *result) error {
	f, err := os.CreateTemp("", fmt.Sprintf("soak-%d-*.jsonl", r.seed))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f, r.records); err != nil {
		return fmt.Errorf("writing %s: %w", f.Name(), err)
	}
	fmt.Fprintf(w, "the history: %s\n", f.Name())
	return f.Close()
}

func write(w io.Writer, records []history.Record) error {
	out := history.NewWriter(w)
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b history.Record) int { return cmp.Compare(a.Time, b.Time) })
	for _, r := range records {
		if err := out.Write(r); err != nil {
			return err
		}
	}
	return nil
}

// replay returns the command that makes the same choices again.
func (o *options) replay(load, oracle, gc string, seed uint64, more string) string {
	return fmt.Sprintf("lab soak --seed %d --workload %s --oracle %s --gc %s --faults %s --each %v --clients %d --workers %d --share %v%s",
		seed, load, oracle, gc, o.faultList, o.each, o.clients, o.workers, o.share, more)
}
