// Package demo is percctl demo: it runs docs/examples/index on real files, with
// workers that it kills.
//
// A coordinator (command.go) loads the files, later some changes (corpus.go), and waits for the
// workers. Workers are processes of their own (worker.go) that run the observers. The fleet
// (fleet.go) starts them, and kills some of them in the middle of a run (kills.go, crash.go).
// strands.go counts the locks that they leave behind. In the end the coordinator compares the
// tables with a batch computation and checks them (verify.go).
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
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/consolecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/telemetry"
	"github.com/percolator-bigtable/percolator/docs/examples/index"
	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

type options struct {
	workers, kills, limit int
	dir                   string
	seed                  uint64
	timeout               time.Duration
	console               bool
	listen                string
	format                cli.Format
}

const (
	maxWorkers = 64
	maxKills   = 1000
	// defaultLimit makes a run of half a minute on two cores. It covers all files of
	// the Go tool chain that have in-links or that have duplicates.
	defaultLimit = 1000
	// loaders is how many loader transactions run at a time.
	loaders = 8
	// listed is how many violations and mismatches are printed one by one.
	listed = 10
)

// NewCmd returns the demo command.
func NewCmd(s *cli.Streams) *cobra.Command {
	opts := &options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Index real files incrementally, with workers that are killed",
		Long: `Keep an index of documents up to date with observers, on real files: the application
of the Percolator paper in miniature. docs/tutorial.md walks through its code.

The documents are the regular files under --dir; the command does not follow symbolic
links. The imports of a .go file are its links, and so are those of a .html file. Loader
transactions store the files. Then six observers parse them, find duplicates, choose a
canonical document for each group of duplicates by its in-links, invert the links, and
export a table to serve from.

Workers run the observers, each in its own process. The command kills some of them with
SIGKILL in the middle of a run, before or after its commit point, and other workers
continue their work. Then it changes, adds and deletes some documents in memory; the
files stay as they are.

Both times it compares the tables, cell by cell, with what a batch computation makes of
the same documents. In the end it resolves all locks, runs the consistency check over
all tables, and counts the notifications that are left.

With --console, the command shows a page while it runs, as percctl console does, and
prints its address. The page stays after the end of the demo, until Ctrl-C. Then it also has
the tables accounts and journal, with locks of two clients that died in the middle of a
commit: look at them, and resolve them.

The tables are in an emulator inside the process, or in the emulator that
BIGTABLE_EMULATOR_HOST names, in an instance of their own. To see what the processes
do, set variables of OpenTelemetry (docs/observability.md):

  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318   send traces and metrics there
  OTEL_TRACES_EXPORTER=console                        write spans to standard error
  OTEL_METRICS_EXPORTER=prometheus                    serve /metrics on port 9464, for
                                                      worker N on port 9464+N

Exit status 4: there are mismatches, violations, or notifications left.`,
		Example: `  percctl demo                              # of the source of the Go tool chain
  percctl demo --console                    # and watch it in a browser
  percctl demo --limit 0                    # all of it
  percctl demo --limit 500 -o json
  percctl demo --dir ~/documents --workers 8 --kills 20
  percctl demo --seed 7                     # repeats the changes and kills of a run
  OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_METRICS_EXPORTER=none percctl demo
  BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts, s) },
	}
	f := cmd.Flags()
	f.IntVar(&opts.workers, "workers", 4, "number of worker processes at a time")
	f.IntVar(&opts.kills, "kills", 6, "number of workers to kill in the middle of a run")
	f.IntVar(&opts.limit, "limit", defaultLimit, "maximum number of files; those with duplicates or in-links come first (0: all)")
	f.StringVar(&opts.dir, "dir", "", "directory of the files (default: src of go env GOROOT)")
	f.Uint64Var(&opts.seed, "seed", 0, "number that decides order, changes and kills (0: a random one)")
	f.DurationVar(&opts.timeout, "timeout", 10*time.Minute, "stop after this time")
	f.BoolVar(&opts.console, "console", false, "show the deployment as a web page")
	f.StringVar(&opts.listen, "listen", "127.0.0.1:7080", "with --console: loopback address and port of the page (port 0: any free port)")
	cli.FormatFlag(cmd, &opts.format, cli.ObjectFormats...)
	cli.Prints(cmd, cli.ObjectOf[summary]())
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "clients" { // its former name
			name = "workers"
		}
		return pflag.NormalizedName(name)
	})
	_ = cmd.MarkFlagDirname("dir") // it fails only where the flag does not exist
	cmd.AddCommand(newWorkerCmd(s))
	return cmd
}

// complete checks the options and fills in the defaults.
func (o *options) complete() (err error) {
	switch {
	case o.workers < 1 || o.workers > maxWorkers:
		return cli.Usagef("--workers %d: it has to be between 1 and %d", o.workers, maxWorkers)
	case o.kills < 0 || o.kills > maxKills:
		return cli.Usagef("--kills %d: it has to be between 0 and %d", o.kills, maxKills)
	case o.limit < 0:
		return cli.Usagef("--limit %d: it has to be positive, or 0 for all files", o.limit)
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
	if opts.console {
		scrapeWorkers()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, opts.timeout, fmt.Errorf("--timeout %v expired: %w", opts.timeout, context.DeadlineExceeded))
	defer cancel()
	d := &demo{opts: opts, stderr: s.Err, progress: cli.NewProgress(s)}
	// The page stays longer than the demo, and its tables do.
	defer d.end()
	sum, err := d.run(ctx, signals)
	d.progress.End()
	switch {
	case signals.Err() != nil:
		return fmt.Errorf("interrupted: %s", d.interrupted())
	case err != nil:
		return err
	}
	sum.page = d.page != nil
	if err := sum.print(s.Out, opts.format); err != nil {
		return err
	}
	if d.page != nil {
		if err := d.at.strand(signals); err != nil {
			return err
		}
		fmt.Fprintf(s.Err, "two more clients died in the middle of a commit: the page at %s shows their locks, and can resolve them; stop with Ctrl-C\n", d.page.URL)
		<-signals.Done()
	}
	return verdict(sum)
}

func verdict(sum *summary) error {
	if sum.Violations+sum.Mismatches+sum.NotificationsLeft == 0 {
		return nil
	}
	return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d violations, %d mismatches and %d notifications left; --seed %d repeats the changes and kills", sum.Violations, sum.Mismatches, sum.NotificationsLeft, sum.Seed)}
}

// A demo is one run.
type demo struct {
	opts     *options
	stderr   io.Writer
	progress *cli.Progress
	fleet    *fleet // nil until workers run
	page     *consolecmd.Console
	at       deployment // of the page
	closers  []func()
}

// end closes the page, and what it shows.
func (d *demo) end() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		d.closers[i]()
	}
}

// run runs the demo within ctx; the page stays until signals ends.
func (d *demo) run(ctx, signals context.Context) (*summary, error) {
	began := time.Now()
	d.progress.Event("reading %s", d.opts.dir)
	docs, skipped, err := listDocuments(ctx, d.opts.dir, d.opts.limit)
	if err != nil {
		return nil, err
	}
	for _, name := range skipped {
		d.progress.Event("skipped %s: it is larger than a cell of Bigtable, or its path is too long", name)
	}
	if d.opts.kills > len(docs) {
		return nil, cli.Usagef("--kills %d: it has to be at most the number of documents, %d", d.opts.kills, len(docs))
	}

	at, external, stop, err := deploy(ctx)
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, stop)
	conn, err := at.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	if err := at.createTables(ctx, conn); err != nil {
		return nil, err
	}
	if d.opts.console {
		if err := d.openPage(signals, at); err != nil {
			return nil, err
		}
	}
	d.progress.Event("%d documents; emulator at %s, project %s, instance %s; seed %d", len(docs), at.address, at.project, at.instance, d.opts.seed)
	if n := telemetry.ChildPorts(d.opts.workers); n != "" {
		d.progress.Event("metrics for Prometheus at %s", n)
	}
	strands := newStrands()
	own, err := txn.NewClient(ctx, conn.bigtable, clientConfig())
	if err != nil {
		return nil, err
	}
	admin.OnResolve(own, strands.onResolve)
	defer func() { _ = own.Close(ctx) }() // its commits are awaited
	if err := index.Register(ctx, own); err != nil {
		return nil, err
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
	d.progress.Event("the workers have ended; checking what is stored")
	err = d.verify(ctx, own, sum)
	sum.Seconds = round(time.Since(began).Seconds())
	return sum, err
}

// index loads the documents and waits until the workers have caught up. Then it does
// the same with some changes. Both times it compares the tables with what a batch
// computation makes of the same documents.
func (d *demo) index(ctx context.Context, client *txn.Client, c *corpus, sum *summary) error {
	began := time.Now()
	names := c.names()
	rand.New(rand.NewPCG(d.opts.seed, 1)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if err := d.load(ctx, client, c.documents(names), sum); err != nil {
		return err
	}
	d.enter("all %d documents are loaded; the observers index them", len(names))
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

	ch, err := c.change(d.opts.seed, batch.Clusters)
	if err != nil {
		return err
	}
	sum.Changed, sum.Added, sum.Deleted = ch.changed, ch.added, ch.deleted
	d.enter("all are indexed, and compared; now %d documents change, %d are added, %d are deleted", ch.changed, ch.added, ch.deleted)
	began = time.Now()
	if err := d.load(ctx, client, c.documents(ch.names), sum); err != nil {
		return err
	}
	if err := d.spare(ctx, client, c, sum); err != nil {
		return err
	}
	d.enter("the observers index the changes")
	batch, err = d.percolate(ctx, client, c, sum)
	sum.Percolated = round(time.Since(began).Seconds())
	if err == nil {
		sum.Cells = len(batch.State)
	}
	return err
}

// enter says what the demo does from now on.
func (d *demo) enter(stage string, args ...any) {
	stage = fmt.Sprintf(stage, args...)
	d.fleet.stage.Store(stage)
	d.progress.Event("%s", stage)
}

func (d *demo) load(ctx context.Context, client *txn.Client, documents iter.Seq2[index.Document, error], sum *summary) error {
	n, err := notify.Load(ctx, client, documents, index.Load, notify.LoadConfig{
		Concurrency: loaders,
		Progress:    func(int) { d.fleet.loaded.Add(1) },
	})
	sum.Committed += n
	return err
}

// spare waits until all kills have happened. Until then it deletes and restores documents,
// several at a time and all in turn: with a few of them, the worker that has the order to stop
// may get no run that reaches its crash point, and the demo would not end.
func (d *demo) spare(ctx context.Context, client *txn.Client, c *corpus, sum *summary) error {
	d.fleet.hurry.Store(true)
	for names := c.names(); ; {
		for some := range slices.Chunk(names, loaders) {
			select {
			case <-d.fleet.spared:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(reporting):
			}
			err := d.load(ctx, client, func(yield func(index.Document, error) bool) {
				for i := 0; i < len(some) && yield(index.Document{Name: some[i], Deleted: true}, nil); i++ {
				}
			}, sum)
			if err == nil {
				err = d.load(ctx, client, c.documents(some), sum)
			}
			if err != nil {
				return err
			}
		}
	}
}

// percolate waits until the workers have caught up, and compares.
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

// count adds what the workers did to the summary.
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

// verify resolves the locks that are left, and checks the tables.
func (d *demo) verify(ctx context.Context, client *txn.Client, sum *summary) (err error) {
	if err := recoverLocks(ctx, client); err != nil {
		return err
	}
	if sum.RolledForward, sum.RolledBack, err = d.fleet.strands.count(ctx, client); err != nil {
		return err
	}
	sum.LocksStranded = sum.RolledForward + sum.RolledBack
	violations, err := check(ctx, client)
	if err != nil {
		return err
	}
	sum.Violations = len(violations)
	d.list("violation", violations)
	sum.NotificationsLeft, err = notifications(ctx, client)
	return err
}

func (d *demo) list(what string, found []string) {
	for _, f := range found[:min(listed, len(found))] {
		d.progress.Event("%s: %s", what, f)
	}
	if more := len(found) - listed; more > 0 {
		d.progress.Event("… and %d more", more)
	}
}

// interrupted says how far the run came.
func (d *demo) interrupted() string {
	if d.fleet == nil {
		return "nothing was written"
	}
	return fmt.Sprintf("%d of %d documents were loaded; all workers have ended", min(d.fleet.loaded.Load(), int64(d.fleet.documents)), d.fleet.documents)
}

// round keeps two decimals.
func round(x float64) float64 { return float64(int64(x*100+0.5)) / 100 }
