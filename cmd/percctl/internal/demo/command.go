// Package demo is percctl demo: the index of package index, on real files, kept
// up to date by workers that are killed.
//
// A coordinator (command.go) loads the files, and then some changes (corpus.go),
// and waits. Workers, which are processes of their own (worker.go), run the
// observers; the fleet (fleet.go) kills some of them in the middle of a run
// (crash.go, kills.go). strands.go accounts for the locks that they leave. In the
// end everything is compared with a batch computation and checked (verify.go).
package demo

import (
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/index"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/admin"
	txnchanges "github.com/percolator-bigtable/percolator/txn/changes"
)

type options struct {
	workers, kills, limit int
	dir                   string
	seed                  uint64
	duration, timeout     time.Duration
	format                cli.Format
}

const (
	maxWorkers = 64
	maxKills   = 1000
	// defaultLimit makes a run of half a minute on two cores, and takes all files
	// of the Go tool chain that are linked to or have duplicates.
	defaultLimit = 1000
	// loaders is how many loader transactions are under way at a time.
	loaders = 8
	// listed is how many violations and mismatches are told one by one.
	listed = 10
)

// NewCmd returns the demo command.
func NewCmd(s *cli.Streams) *cobra.Command {
	opts := &options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Index real files incrementally, with workers that are killed",
		Long: `Keep an index of documents up to date by observers, on real files.

Documents are the regular files under --dir; symbolic links are passed over. The
imports of .go files are their links, and so are those of .html files. Loader
transactions store the files, and a chain of six observers takes them apart,
finds duplicates, chooses the canonical document among them by its in-links,
inverts the links, and exports a table to serve from: the application of the
Percolator paper in miniature. Workers, which are processes of their own, run
the observers. Some are killed by SIGKILL in the middle of a run, before and
after its commit point, and others take over. Then some documents are changed,
added and deleted, in memory: the files stay as they are.

Both times the tables are compared, cell by cell, with what a batch computation
makes of the same documents. In the end all locks are settled, the consistency
check runs over all tables, and no notification may be left. Exit status 4 means
that one of these found something.

With --duration the demo goes on, as a deployment to look at, in which everything
that can happen does, again and again: documents change and some of them cannot be
parsed, workers are killed, answers of Bigtable are lost, timestamps are served and
the leading server is killed, transactions conflict over one cell, clients die in
rows that nobody reads, and garbage is collected, with its times divided by 60.

To see what it does:

  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318   sends traces and metrics there,
  OTEL_TRACES_EXPORTER=console    writes spans to standard error,
  OTEL_METRICS_EXPORTER=prometheus  serves /metrics on port 9464; the n-th worker, or
                                  whoever took its place, on 9464+n, and the servers
                                  of timestamps on the next two,

and the other variables of OpenTelemetry; docs/observability.md has them, and what
there is to see, a dashboard and alerts.

The tables are in an emulator inside the process, or in the one that
BIGTABLE_EMULATOR_HOST names, in an instance of their own. The summary goes to
standard output, progress to standard error. docs/tutorial.md walks through it.`,
		Example: `  percctl demo                              # of the source of the Go tool chain
  percctl demo --limit 0                    # all of it
  percctl demo --limit 500 -o json
  percctl demo --dir ~/documents --workers 8 --kills 20
  percctl demo --seed 7                     # the same changes and kills again
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_METRICS_EXPORTER=none percctl demo
  OTEL_METRICS_EXPORTER=prometheus percctl demo --duration 10m
  BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts, s) },
	}
	f := cmd.Flags()
	f.IntVar(&opts.workers, "workers", 4, "worker processes at a time")
	f.IntVar(&opts.kills, "kills", 6, "workers to kill in the middle of a run")
	f.IntVar(&opts.limit, "limit", defaultLimit, "index only so many files, first of all those that have duplicates or are linked to (0: all)")
	f.StringVar(&opts.dir, "dir", "", "directory of the documents (default: src of go env GOROOT)")
	f.Uint64Var(&opts.seed, "seed", 0, "choose order, changes and kills by this number (0: by chance)")
	f.DurationVar(&opts.duration, "duration", 0, "go on for so long once all is indexed, with everything that can happen, to be looked at")
	f.DurationVar(&opts.timeout, "timeout", 10*time.Minute, "give up after this time, and --duration")
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "clients" { // as it was called once
			name = "workers"
		}
		return pflag.NormalizedName(name)
	})
	_ = cmd.MarkFlagDirname("dir") // it fails only where the flag does not exist
	cmd.AddCommand(newWorkerCmd(s), newOracleCmd(s))
	return cmd
}

// complete checks the options and fills in what was left to be chosen.
func (o *options) complete() (err error) {
	switch {
	case o.workers < 1 || o.workers > maxWorkers:
		return cli.Usagef("--workers %d: it has to be between 1 and %d", o.workers, maxWorkers)
	case o.kills < 0 || o.kills > maxKills:
		return cli.Usagef("--kills %d: it has to be between 0 and %d", o.kills, maxKills)
	case o.limit < 0:
		return cli.Usagef("--limit %d: it has to be positive, or 0 for all files", o.limit)
	case o.duration < 0:
		return cli.Usagef("--duration %v: it has to be positive, or 0 for a demo that ends by itself", o.duration)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: it has to be positive", o.timeout)
	}
	if o.dir == "" {
		if o.dir, err = sourceTree(); err != nil {
			return err
		}
	}
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	o.dir, err = openDir(o.dir)
	return err
}

func run(ctx context.Context, opts *options, s *cli.Streams) error {
	if err := opts.complete(); err != nil {
		return err
	}
	signals := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, opts.timeout+opts.duration, fmt.Errorf("--timeout %v is over: %w", opts.timeout, context.DeadlineExceeded))
	defer cancel()
	d := &demo{opts: opts, stderr: s.Err, progress: newProgress(s.Err)}
	sum, err := d.run(ctx)
	d.progress.end()
	switch {
	case signals.Err() != nil:
		return fmt.Errorf("interrupted: %s", d.interrupted())
	case err != nil:
		return err
	}
	if err := sum.print(s.Out, opts.format); err != nil {
		return err
	}
	return verdict(sum)
}

func verdict(sum *summary) error {
	if sum.Violations+sum.Mismatches+sum.NotificationsLeft == 0 {
		return nil
	}
	return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d violations, %d mismatches and %d notifications left; --seed %d chooses the same changes and kills again", sum.Violations, sum.Mismatches, sum.NotificationsLeft, sum.Seed)}
}

// A demo is one run.
type demo struct {
	opts     *options
	stderr   io.Writer
	progress *progress
	fleet    *fleet // nil until workers run

	at      deployment
	config  txn.Config // of clients in this process
	oracles *oracles   // nil in direct mode
}

// tables are those of the deployment.
func (d *demo) tables() []admin.TableSpec {
	if d.opts.duration > 0 {
		return append(slices.Clone(index.Tables), visitsTable)
	}
	return index.Tables
}

func (d *demo) run(ctx context.Context) (*summary, error) {
	began := time.Now()
	d.progress.event("reading %s", d.opts.dir)
	docs, skipped, err := listDocuments(ctx, d.opts.dir, d.opts.limit)
	if err != nil {
		return nil, err
	}
	for _, name := range skipped {
		d.progress.event("skipped %s: larger than a Bigtable cell, or its path is too long", name)
	}
	if d.opts.kills > len(docs) {
		return nil, cli.Usagef("--kills %d: it has to be at most the number of documents, which is %d", d.opts.kills, len(docs))
	}

	at, external, stop, err := deploy(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	conn, err := at.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	if err := at.createTables(ctx, conn, d.tables()); err != nil {
		return nil, err
	}
	d.progress.event("%d documents; emulator at %s, project %s, instance %s; seed %d", len(docs), at.address, at.project, at.instance, d.opts.seed)
	if d.opts.duration > 0 {
		if d.oracles, err = startOracles(ctx, &at, conn, d.opts.workers+1, d.stderr, d.progress); err != nil {
			return nil, err
		}
		defer func() { _ = d.oracles.stop() }() // nobody needs them any more
	}
	if n := telemetry.ChildPorts(d.opts.workers + len(at.oracles)); n != "" {
		d.progress.event("metrics for Prometheus at %s", n)
	}
	strands := newStrands()
	config, closeOracle, err := at.clientConfig()
	if err != nil {
		return nil, err
	}
	defer closeOracle()
	d.at, d.config = at, config
	own, err := txn.NewClient(ctx, conn.bigtable, config)
	if err != nil {
		return nil, err
	}
	admin.OnResolve(own, strands.resolved)
	defer func() { _ = own.Close(ctx) }() // everything it did is waited for
	if err := index.Register(ctx, own); err != nil {
		return nil, err
	}
	if at.goesOn() {
		if err := txnchanges.RegisterObserver(ctx, own, criticized().Table, criticized().Column, criticID, false); err != nil {
			return nil, err
		}
	}

	sum := &summary{Dir: d.opts.dir, Seed: d.opts.seed, Clients: d.opts.workers, Observers: len(index.Observers()), Documents: len(docs), Skipped: len(skipped)}
	if external {
		sum.Emulator, sum.Project, sum.Instance = at.address, at.project, at.instance
	}
	d.fleet = &fleet{opts: d.opts, at: at, own: own, strands: strands, progress: d.progress, stderr: d.stderr, documents: len(docs), spared: make(chan struct{})}
	finish := make(chan struct{})
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.fleet.run(gctx, finish) })
	g.Go(func() error {
		defer close(finish)
		return d.index(gctx, own, newCorpus(d.opts.dir, docs), sum)
	})
	if err := g.Wait(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	d.count(sum)
	err = d.verify(ctx, own, sum)
	sum.Seconds = round(time.Since(began).Seconds())
	return sum, err
}

// index loads the documents and waits until all that follows from it is done;
// and does the same with some changes. Each time the tables are compared with
// what a batch computation makes of the same documents.
func (d *demo) index(ctx context.Context, client *txn.Client, c *corpus, sum *summary) error {
	began := time.Now()
	names := c.names()
	rand.New(rand.NewPCG(d.opts.seed, 1)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if err := d.load(ctx, client, c.documents(names), sum); err != nil {
		return err
	}
	batch, err := d.percolate(ctx, client, c, sum)
	if err != nil {
		return err
	}
	sum.Bytes, sum.Links = batch.Bytes, batch.Links
	sum.PerSecond = round(float64(len(names)) / time.Since(began).Seconds())
	for _, cl := range batch.Clusters {
		sum.Duplicates += cl.Documents - 1
		if cl.Documents > 1 && len(sum.Clusters) < 3 {
			sum.Clusters = append(sum.Clusters, cl)
		}
	}

	if d.opts.duration > 0 {
		return d.goOn(ctx, client, c, batch.Clusters, sum)
	}
	ch, err := c.change(d.opts.seed, batch.Clusters)
	if err != nil {
		return err
	}
	sum.Changed, sum.Added, sum.Deleted = ch.changed, ch.added, ch.deleted
	d.progress.event("indexed; %d documents are changed, %d added, %d deleted", ch.changed, ch.added, ch.deleted)
	began = time.Now()
	if err := d.load(ctx, client, c.documents(ch.names), sum); err != nil {
		return err
	}
	if err := d.spare(ctx, client, c, ch.names, sum); err != nil {
		return err
	}
	batch, err = d.percolate(ctx, client, c, sum)
	sum.Percolated = round(time.Since(began).Seconds())
	if err == nil {
		sum.Cells = len(batch.State)
	}
	return err
}

func (d *demo) load(ctx context.Context, client *txn.Client, documents iter.Seq2[index.Document, error], sum *summary) error {
	n, err := notify.Load(ctx, client, documents, index.Load, notify.LoadConfig{
		Concurrency: loaders,
		Progress:    func(int) { d.fleet.loaded.Add(1) },
	})
	sum.Committed += n
	return err
}

// spare returns when everybody who was to be killed is dead. While the work
// gives too few occasions, a document is deleted and comes back.
func (d *demo) spare(ctx context.Context, client *txn.Client, c *corpus, names []string, sum *summary) error {
	d.fleet.hurry.Store(true)
	for i := 0; ; i++ {
		select {
		case <-d.fleet.spared:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(reporting):
		}
		doc, err := c.read(names[i%len(names)])
		if err != nil {
			return err
		}
		for _, doc := range []index.Document{{Name: doc.Name, Deleted: true}, doc} {
			if err := d.load(ctx, client, func(yield func(index.Document, error) bool) { yield(doc, nil) }, sum); err != nil {
				return err
			}
		}
	}
}

// percolate waits until nothing is left to run, and compares.
func (d *demo) percolate(ctx context.Context, client *txn.Client, c *corpus, sum *summary) (*index.Result, error) {
	asOf, err := notify.Wait(ctx, client, notify.WaitConfig{})
	if err != nil {
		return nil, err
	}
	snapshot, err := client.Snapshot(ctx, txn.At(asOf), txn.Hold())
	if err != nil {
		return nil, err
	}
	defer snapshot.Release()
	got, err := index.Read(ctx, snapshot)
	if err != nil {
		return nil, err
	}
	batch, err := index.Compute(c.documents(c.names()))
	if err != nil {
		return nil, err
	}
	mismatches := index.Compare(got, batch.State)
	sum.Mismatches += len(mismatches)
	d.list("mismatch", mismatches)
	return batch, nil
}

// count tells what the workers did.
func (d *demo) count(sum *summary) {
	f := d.fleet
	total := f.totals().Worker
	sum.ObserversRun, sum.ObserversCommitted, sum.Collapsed = total.Runs, total.Committed, total.Collapsed
	sum.Conflicts, sum.LostRaces, sum.Failed = total.Conflicts, total.LostRaces, total.Failed
	for point, n := range f.killed {
		sum.WorkersKilled += n
		if point.committed() {
			sum.KilledAfter += n
		} else {
			sum.KilledBefore += n
		}
	}
	sum.ClientsKilled, sum.KilledByOther = sum.WorkersKilled, f.died
}

// verify settles what is left, and looks whether anything is wrong.
func (d *demo) verify(ctx context.Context, client *txn.Client, sum *summary) (err error) {
	if err := recoverLocks(ctx, client, d.tables()); err != nil {
		return err
	}
	if sum.RolledForward, sum.RolledBack, err = d.fleet.strands.count(ctx, client); err != nil {
		return err
	}
	sum.LocksStranded = sum.RolledForward + sum.RolledBack
	violations, err := check(ctx, client, d.tables())
	if err != nil {
		return err
	}
	sum.Violations = len(violations)
	d.list("violation", violations)
	if sum.NotificationsLeft, err = notifications(ctx, client, d.tables()); err != nil || sum.Long == nil {
		return err
	}
	return d.letters(ctx, client, sum)
}

func (d *demo) list(what string, found []string) {
	for _, f := range found[:min(listed, len(found))] {
		d.progress.event("%s: %s", what, f)
	}
	if more := len(found) - listed; more > 0 {
		d.progress.event("… and %d more", more)
	}
}

// interrupted says what was done.
func (d *demo) interrupted() string {
	if d.fleet == nil {
		return "nothing was written"
	}
	return fmt.Sprintf("%d of %d documents are loaded, all workers have ended", min(d.fleet.loaded.Load(), int64(d.fleet.documents)), d.fleet.documents)
}

// round keeps two decimals.
func round(x float64) float64 { return float64(int64(x*100+0.5)) / 100 }
