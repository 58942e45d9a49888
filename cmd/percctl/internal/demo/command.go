// Package demo is percctl demo: a document repository that transactions keep
// free of duplicates, on real files, while clients are killed.
//
// The transaction is in documents.go. A coordinator (coordinator.go) hands the
// files to clients, which are processes of their own (worker.go), and kills
// some of them in the middle of a commit (crash.go, kills.go). strands.go
// accounts for the locks that they leave. In the end everything is compared
// with what the files say (expect.go, verify.go).
package demo

import (
	"context"

	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/txn"
)

type options struct {
	clients, kills, limit int
	dir                   string
	seed                  uint64
	timeout               time.Duration
	format                cli.Format
}

const (
	maxClients = 64
	maxKills   = 1000
	// listed is how many violations and mismatches are told one by one.
	listed = 10
)

// NewCmd returns the demo command.
func NewCmd(s *cli.Streams) *cobra.Command {
	opts := &options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Keep a repository of real files free of duplicates, with clients that are killed",
		Long: `Keep a document repository free of duplicates, transactionally, on real files.

Every regular file under --dir is a document; symbolic links are passed over.
One transaction per document, across three tables, stores its contents, enters
it into its cluster of duplicates (the example of the Percolator paper, Figure
2), and keeps totals by directory. Clients are processes of their own. Some are
killed in the middle of a commit, by SIGKILL, half of them before their commit
point and half after it, and the others clean up behind them.

In the end all locks are settled, the consistency check runs over all tables,
and every cell is compared with what the files say. Exit status 4 means that
one of the two found something.

The tables are in an emulator inside the process, or in the one that
BIGTABLE_EMULATOR_HOST names, in an instance of their own. The summary goes to
standard output, progress to standard error.`,
		Example: `  percctl demo                              # the source of the Go tool chain
  percctl demo --limit 2000 -o json
  percctl demo --dir ~/documents --clients 8 --kills 20
  percctl demo --seed 7                     # the same kills again
  BIGTABLE_EMULATOR_HOST=localhost:9000 percctl demo`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), opts, s) },
	}
	f := cmd.Flags()
	f.IntVar(&opts.clients, "clients", 4, "client processes at a time")
	f.IntVar(&opts.kills, "kills", 6, "clients to kill in the middle of a commit")
	f.IntVar(&opts.limit, "limit", 0, "process only the first files in order of their paths (0: all)")
	f.StringVar(&opts.dir, "dir", "", "directory of the documents (default: src of go env GOROOT)")
	f.Uint64Var(&opts.seed, "seed", 0, "choose order and kills by this number (0: by chance)")
	f.DurationVar(&opts.timeout, "timeout", 10*time.Minute, "give up after this time")
	cli.FormatFlag(cmd, &opts.format, cli.Table, cli.JSON)
	_ = cmd.MarkFlagDirname("dir") // it fails only where the flag does not exist
	cmd.AddCommand(newWorkerCmd(s))
	return cmd
}

// complete checks the options and fills in what was left to be chosen.
func (o *options) complete() (err error) {
	switch {
	case o.clients < 1 || o.clients > maxClients:
		return cli.Usagef("--clients %d: it has to be between 1 and %d", o.clients, maxClients)
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
	ctx, cancel := context.WithTimeoutCause(ctx, opts.timeout, fmt.Errorf("--timeout %v is over: %w", opts.timeout, context.DeadlineExceeded))
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
	if sum.Violations+sum.Mismatches == 0 {
		return nil
	}
	return &cli.Error{Code: cli.ExitFound, Err: fmt.Errorf("%d violations and %d mismatches; --seed %d chooses the same kills again", sum.Violations, sum.Mismatches, sum.Seed)}
}

// A demo is one run.
type demo struct {
	opts     *options
	stderr   io.Writer
	progress *progress
	work     *coordinator // nil until clients run
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
	want, clusters := compute(docs)

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
	if err := at.createTables(ctx, conn); err != nil {
		return nil, err
	}
	d.progress.event("%d documents; emulator at %s, project %s, instance %s; seed %d", len(docs), at.address, at.project, at.instance, d.opts.seed)
	strands := newStrands()
	own, err := txn.NewClient(ctx, conn.bigtable, clientConfig(strands.resolved))
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close(ctx) }() // it committed nothing

	d.work = &coordinator{opts: d.opts, at: at, own: own, docs: docs, strands: strands, progress: d.progress, stderr: d.stderr}
	working := time.Now()
	if err := d.work.run(ctx); err != nil {
		return nil, err
	}
	worked := time.Since(working)
	d.progress.end()
	d.progress.event("all documents are processed; settling what killed clients left, checking, comparing")
	sum := d.summarize(docs, clusters)
	if external {
		sum.Emulator, sum.Project, sum.Instance = at.address, at.project, at.instance
	}
	sum.Skipped = len(skipped)
	sum.Cells = len(want)
	sum.PerSecond = round(float64(len(docs)) / worked.Seconds())
	err = d.verify(ctx, own, want, sum)
	sum.Seconds = round(time.Since(began).Seconds())
	return sum, err
}

// summarize tells what the coordinator did.
func (d *demo) summarize(docs []document, clusters []cluster) *summary {
	c := d.work
	sum := &summary{
		Dir:           d.opts.dir,
		Seed:          d.opts.seed,
		Clients:       d.opts.clients,
		Documents:     len(docs),
		Bytes:         size(docs),
		ClientsKilled: c.killed[beforeCommit] + c.killed[afterCommit],
		KilledBefore:  c.killed[beforeCommit],
		KilledAfter:   c.killed[afterCommit],
		KilledByOther: c.died,
		Clusters:      append([]cluster{}, clusters[:min(3, len(clusters))]...),
	}
	sum.Conflicts, sum.Retries = c.totals()
	for _, cl := range clusters {
		sum.Duplicates += cl.Documents - 1
	}
	for _, ts := range c.commits {
		if ts == 0 {
			sum.Found++
		}
	}
	return sum
}

// verify settles what is left, and compares the tables with the protocol's
// invariants, with what clients were told, and with what the files say.
func (d *demo) verify(ctx context.Context, client *txn.Client, want state, sum *summary) (err error) {
	if err := recoverLocks(ctx, client); err != nil {
		return err
	}
	if sum.RolledForward, sum.RolledBack, err = d.work.strands.count(ctx, client); err != nil {
		return err
	}
	sum.LocksStranded = sum.RolledForward + sum.RolledBack
	violations, err := check(ctx, client)
	if err != nil {
		return err
	}
	got, commits, err := readState(ctx, client)
	if err != nil {
		return err
	}
	mismatches, committed := compareCommits(d.work.docs, d.work.commits, commits)
	mismatches = append(mismatches, compare(got, want)...)
	sum.Committed, sum.Violations, sum.Mismatches = committed, len(violations), len(mismatches)
	d.list("violation", violations)
	d.list("mismatch", mismatches)
	return nil
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
	if d.work == nil {
		return "nothing was written"
	}
	return fmt.Sprintf("%d of %d documents are committed, all clients have ended", len(d.work.commits), len(d.work.docs))
}

// round keeps two decimals.
func round(x float64) float64 { return float64(int64(x*100+0.5)) / 100 }
