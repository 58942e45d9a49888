package gc

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/pace"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

const (
	// pageRows limits the rows of a page. A run holds a page of each stream in memory, and a
	// continued run may have to repeat them. store.MaxPageBytes limits its bytes.
	pageRows = 1024
	// pieceRows is how many rows a request changes at most: other clients wait while a node works on
	// it.
	pieceRows = 100
	// maxStreams is how many parts of a table a run reads at a time.
	maxStreams = 16
	// rowsPerStream is how many rows a second one stream certainly reads. A lower Config.Rate
	// needs no second stream.
	rowsPerStream = 5000
)

// run is one run of garbage collection, or what one collector does of it, or one plan.
type run struct {
	client  *recovery.Resolver
	cfg     Config
	owner   string
	limiter *rate.Limiter
	pacer   *pace.Pacer // of writes
	scans   *pace.Pacer // of scans in a run that reads every row; nil: one at a time
	measure metrics
	page    int // rows of a page
	streams int // parts of a table that are read at a time

	// mu guards report.Total, counts, works, and calls of cfg.Progress while parts are read.
	mu     sync.Mutex
	counts map[string]*Counts // by table
	works  []*work            // parts that this collector works on

	report *Report
	locks  *lockResolver
	// state is the stored record of the run as this collector read or wrote it last, and version
	// its version. stored is the part of report.Total that the record contains.
	state     *recordpb.GarbageRun
	version   []byte
	stored    Counts
	startedTS int64
	rules     rules
}

func newRun(c *recovery.Resolver, cfg Config) (*run, error) {
	measure, err := newMetrics(c.Store.Config.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("gc: metrics: %w", err)
	}
	r := &run{measure: measure, client: c, cfg: cfg, owner: newOwner(), pacer: pace.New(c.Store.Config.Parallelism), counts: map[string]*Counts{}, state: &recordpb.GarbageRun{}}
	r.setStreams(cfg.Rate)
	r.report = &Report{HeldBy: []Hold{}, Tables: []Counts{}}
	r.locks = &lockResolver{run: r}
	return r, nil
}

// setStreams sets how much this collector reads at a time, in a run with a rate.
func (r *run) setStreams(all float64) {
	r.page, r.streams, r.limiter, r.scans = pageRows, maxStreams, rate.NewLimiter(rate.Inf, 0), nil
	if r.cfg.Rate > 0 {
		all = min(cmp.Or(all, r.cfg.Rate), r.cfg.Rate)
	}
	if all > 0 {
		r.page = max(1, min(pageRows, int(all)))
		r.streams = int(min(maxStreams, 1+all/rowsPerStream))
		r.limiter = rate.NewLimiter(rate.Limit(all), r.page)
	}
	if r.streams > 1 {
		r.scans = pace.Scans(r.streams)
	}
}

// begin notes the oracle's time, and returns the published safe point.
func (r *run) begin(ctx context.Context) (*recordpb.SafePoint, error) {
	var err error
	if r.report.Now, err = r.client.Clock.Timestamp(ctx); err != nil {
		return nil, err
	}
	record, _, err := r.client.SafePoint.ReadRecord(ctx)
	r.report.Previous = tso.Timestamp(record.GetTs())
	return record, err
}

// chooseSafePoint returns the safe point of a new run: as late as the retention
// allows, below every known open transaction and held snapshot, and never below
// the published one.
func (r *run) chooseSafePoint(ctx context.Context) (tso.Timestamp, error) {
	record, err := r.begin(ctx)
	if err != nil {
		return 0, err
	}
	now := r.report.Now
	holds, err := readHolds(ctx, r.client, now)
	if err != nil {
		return 0, err
	}
	r.rules.drained = store.Drained(record, now, r.cfg.Retention)
	return r.below(holds), nil
}

// below returns the latest safe point that the retention and holds allow.
func (r *run) below(holds []Hold) tso.Timestamp {
	retained := r.report.Now.Add(-r.cfg.Retention)
	p := retained
	for _, h := range holds {
		if h.OldestTS <= retained {
			r.report.HeldBy = append(r.report.HeldBy, h)
			p = min(p, h.OldestTS-1)
		}
	}
	return max(p, r.report.Previous)
}

func (r *run) setSafePoint(p tso.Timestamp, plain bool) {
	r.report.SafePoint, r.rules.safePoint, r.rules.plain = p, p, plain
}

// work shares the phase that the run is in.
func (r *run) work(ctx context.Context) error {
	record, _, err := r.client.SafePoint.ReadRecord(ctx)
	if err != nil {
		return err
	}
	// Now: a transaction may have committed to a table that was made before the fence ended.
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	switch r.state.Phase {
	case recordpb.GarbageRun_PHASE_LOCKS:
		r.locks.begin()
		return r.phase(ctx, "resolve locks", func(ctx context.Context) error {
			return shareParts(ctx, r, r.streams, func(ctx context.Context, w *work) error { return r.locks.part(ctx, tables, w) })
		})
	case recordpb.GarbageRun_PHASE_COLLECT:
		r.rules.drained = min(tso.Timestamp(record.DrainedTs), r.rules.safePoint)
		return r.phase(ctx, "collect", func(ctx context.Context) error {
			return shareParts(ctx, r, r.streams, func(ctx context.Context, w *work) error { return r.part(ctx, tables, w, r.collectPage) })
		})
	}
	if err := (changes{r}).knowSettled(ctx, record); err != nil {
		return err
	}
	return r.phase(ctx, "collect changes", func(ctx context.Context) error { return shareParts(ctx, r, 1, changes{r}.part) })
}

// plan does the work of Plan.
func (r *run) plan(ctx context.Context) error {
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	p, err := r.chooseSafePoint(ctx)
	if err != nil {
		return err
	}
	r.setSafePoint(p, r.cfg.Plain)
	if p <= 0 {
		r.report.Nothing, r.report.Finished = true, true
		return nil
	}
	for _, p := range divide(ctx, r, tables, position{}) {
		r.works = append(r.works, &work{part: p, at: position{p.Table, string(p.Row)}})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.streams)
	for _, w := range r.works {
		g.Go(func() error { return r.part(gctx, tables, w, r.count) })
	}
	err = g.Wait()
	r.report.Finished = err == nil
	return err
}

// openTables opens every transactional table before anything is changed. Opening
// verifies the table's families, if the client has an admin client.
func (r *run) openTables(ctx context.Context) ([]*store.Table, error) {
	names, err := r.client.TableNames(ctx)
	if err != nil {
		return nil, err
	}
	var there []*store.Table
	for _, name := range names {
		t, err := r.client.Table(ctx, name)
		if err == nil {
			_, err = t.Schema.Fresh(ctx)
		}
		switch {
		case status.Code(err) == codes.NotFound && r.report.DryRun:
			r.report.Missing = append(r.report.Missing, name)
		case status.Code(err) == codes.NotFound:
			// If it came back from a backup, its locks would need what this run removes.
			return nil, fmt.Errorf("gc: table %q has a schema record but does not exist; restore it, or delete row %q of the metadata table if you deleted the table on purpose; nothing was removed: %w", name, store.SchemaRowPrefix+name, err)
		case err != nil:
			return nil, err
		default:
			there = append(there, t)
		}
	}
	return there, nil
}

// part reads a part, page by page, and calls do with each page.
func (r *run) part(ctx context.Context, tables []*store.Table, w *work, do func(context.Context, *store.Table, []bigtable.Row, *Counts) error) error {
	for i, t := range tables {
		rows := w.rows(t.Name)
		if rows.Empty() {
			continue
		}
		s, err := t.Schema.Fresh(ctx)
		if err != nil {
			return err
		}
		err = r.pages(ctx, t, rows, s.Families, func(page []bigtable.Row, left store.RowSet) error {
			done := Counts{Rows: int64(len(page))}
			if err := do(ctx, t, page, &done); err != nil {
				return err
			}
			next := position{t.Name, ""}
			if !left.Empty() {
				next.row = left.Ranges[0].Start
			} else if i+1 < len(tables) {
				next.table = tables[i+1].Name
			}
			r.collected(ctx, w, next, t.Name, done)
			return nil
		})
		if err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.done = true
	return nil
}

// collected notes that a part is collected up to next.
func (r *run) collected(ctx context.Context, w *work, next position, table string, done Counts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w.at = next
	r.add(ctx, table, done)
	first := next
	for _, o := range r.works {
		if !o.done && o.at.compare(first) < 0 {
			first = o.at
		}
	}
	if done.Rows > 0 {
		r.cfg.Progress(Progress{Phase: PhaseCollect, Table: table, Row: first.row, Total: r.report.Total})
	}
}

// add counts what was done in a table. r.mu is held.
func (r *run) add(ctx context.Context, table string, done Counts) {
	if r.counts[table] == nil {
		r.counts[table] = &Counts{Table: table}
	}
	r.counts[table].add(done)
	r.report.Total.add(done)
	if !r.report.DryRun {
		r.measure.page(ctx, table, done)
	}
}

// pages reads rows page by page, as fast as Config.Rate allows, and calls do with each page, which
// may be empty, and with what is left after it.
func (r *run) pages(ctx context.Context, t *store.Table, rest store.RowSet, families []string, do func([]bigtable.Row, store.RowSet) error) error {
	var pieces store.Pieces
	brake := brake{pacer: r.scans}
	filter := r.rules.filter(families, nil)
	for !rest.Empty() {
		var page []bigtable.Row
		var left store.RowSet
		var bytes int
		err := r.retry(ctx, func() (err error) {
			return brake.scan(ctx, t, rest, func() error {
				page, bytes = nil, 0
				left, err = t.ReadPage(ctx, &pieces, rest, r.page, filter, func(raw bigtable.Row) bool {
					page = append(page, raw)
					bytes += store.RowBytes(raw)
					return bytes < store.MaxPageBytes
				})
				return err
			})
		})
		switch {
		case !store.RowTooLarge(err):
		case len(page) > 0:
			left, err = rest.AfterKey(page[len(page)-1].Key(), false), nil
		default:
			page, left, err = r.largeRow(ctx, t, rest, families)
		}
		if err != nil {
			return err
		}
		if err := r.limiter.WaitN(ctx, len(page)); err != nil {
			if ctx.Err() == nil { // ctx would end before the limiter allows the page
				return fmt.Errorf("gc: waiting for Config.Rate: %w: %w", context.DeadlineExceeded, err)
			}
			return store.Ended(ctx, "gc: collecting garbage", err)
		}
		if err := do(page, left); err != nil {
			return err
		}
		rest = left
	}
	return nil
}

// count adds up the garbage of a page and removes nothing.
func (r *run) count(ctx context.Context, t *store.Table, page []bigtable.Row, done *Counts) error {
	for _, raw := range page {
		g := r.rules.row(t, raw)
		r.locks.mu.Lock()
		r.report.Locks.Found += int64(len(g.locks))
		r.locks.mu.Unlock()
		if g.err != nil {
			r.skip(ctx, t, raw.Key(), g.why, g.err)
			done.RowsSkipped++
		}
		done.add(g.counts)
	}
	return nil
}

// collectPage removes the garbage of a page of rows: everything that needs no
// condition in one request, the rest row by row.
func (r *run) collectPage(ctx context.Context, t *store.Table, page []bigtable.Row, done *Counts) error {
	var muts []store.RowMutation
	var alone []bigtable.Row
	for _, raw := range page {
		g := r.rules.row(t, raw)
		if g.err != nil || len(g.locks) > 0 || len(g.deletes) > 0 {
			alone = append(alone, raw)
			continue
		}
		muts = append(muts, g.mutations(raw.Key())...)
		done.add(g.counts)
	}
	if err := r.applyAll(ctx, t, muts); err != nil {
		return err
	}
	counts := make([]Counts, len(alone))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.client.Store.Config.Parallelism)
	for i, raw := range alone {
		g.Go(func() (err error) {
			counts[i], err = r.collectRow(gctx, t, raw)
			return err
		})
	}
	err := g.Wait()
	for _, c := range counts {
		done.add(c)
	}
	return err
}

// collectRow removes the garbage of one row that has a lock at or below the safe
// point, or a newest delete that is garbage. After resolveAll such a lock should
// not exist; if a request arrived too late, collectRow resolves it. A newest
// delete is removed only if there is still nothing that it hides.
func (r *run) collectRow(ctx context.Context, t *store.Table, raw bigtable.Row) (Counts, error) {
	key := raw.Key()
	for range 3 {
		g := r.rules.row(t, raw)
		switch {
		case g.err != nil:
			r.skip(ctx, t, key, g.why, g.err)
			return Counts{RowsSkipped: 1}, nil
		case len(g.locks) > 0:
			now, err := r.locks.now(ctx, len(g.locks))
			if err != nil {
				return Counts{}, err
			}
			for _, lock := range g.locks {
				if _, err := r.locks.resolve(ctx, lock, now); err != nil {
					return Counts{}, err
				}
			}
		default:
			if err := r.applyAll(ctx, t, g.removals(key, g.before)); err != nil {
				return Counts{}, err
			}
			changed := false
			for _, part := range g.conditional() {
				var matched bool
				err := r.retry(ctx, func() error {
					return r.pacer.Do(ctx, 1, func() error {
						var err error
						matched, err = t.CheckAndMutate(ctx, key, part.unless, nil, part.mut)
						return err
					})
				})
				if err != nil {
					return Counts{}, err
				}
				changed = changed || matched
			}
			if !changed {
				return g.counts, r.applyAll(ctx, t, g.mutations(key))
			}
		}
		// The row has changed.
		err := r.retry(ctx, func() (err error) {
			raw, err = t.ReadRow(ctx, key, r.rules.filter(t.Schema.Current().Families, bigtable.StripValueFilter()))
			return err
		})
		if err != nil {
			return Counts{}, err
		}
	}
	r.skip(ctx, t, key, SkippedBusy, nil)
	return Counts{RowsSkipped: 1}, nil
}

// applyAll sends unconditional mutations until all are applied, as fast as the service takes them
// without becoming slow for its other clients.
func (r *run) applyAll(ctx context.Context, t *store.Table, muts []store.RowMutation) error {
	for some := range slices.Chunk(muts, pieceRows) {
		err := r.retry(ctx, func() error {
			return r.pacer.Do(ctx, len(some), func() (err error) {
				some, err = t.Apply(ctx, some)
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retry calls f until it succeeds, fails with a permanent error, or ctx ends. f must
// be safe to repeat.
func (r *run) retry(ctx context.Context, f func() error) error {
	for pause := r.client.Store.Config.Backoff.Start(); ; {
		err := f()
		if err == nil || store.Permanent(err) {
			return err
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "gc: collecting garbage", err)
		}
	}
}

// phase traces a part of a run as one span. Its requests get no spans of their
// own: there are as many as pages of rows.
func (r *run) phase(ctx context.Context, name string, do func(context.Context) error) error {
	ctx, s := r.client.Trace.Begin(ctx, name, "")
	if s.Recording() {
		ctx = trace.ContextWithSpanContext(ctx, s.SpanContext())
	}
	before := r.report.Total.Rows
	err := do(ctx)
	if rows := r.report.Total.Rows - before; rows > 0 {
		s.Set(telemetry.AttrRows.Int64(rows))
	}
	s.EndWith(err)
	return err
}

// setRate sets how fast this collector reads, if the run has so many collectors.
func (r *run) setRate(collectors int) {
	limit := rate.Inf
	if all := r.state.GetRate(); all > 0 {
		limit = rate.Limit(all / float64(max(1, collectors)))
	}
	if own := r.cfg.Rate; own > 0 {
		limit = min(limit, rate.Limit(own))
	}
	r.limiter.SetLimit(limit)
}

// read reads the record of the last run.
func (r *run) read(ctx context.Context) error {
	return r.retry(ctx, func() error {
		state, version, err := readRun(ctx, r.client)
		if err == nil {
			r.state, r.version = state, version
		}
		return err
	})
}

// update changes the record of the run, and adds what this collector has removed since its last
// update. It changes the record only if nobody else has since it was read; otherwise it calls
// change again with the new one. An error of change ends it.
func (r *run) update(ctx context.Context, change func(*recordpb.GarbageRun) error) error {
	for pause := r.client.Store.Config.Backoff.Start(); ; {
		version := []byte(rand.Text()) // of each attempt, to recognize one with an unknown outcome
		r.mu.Lock()
		total, skipped := r.report.Total, r.report.Skipped
		r.mu.Unlock()
		next := proto.CloneOf(r.state)
		if err := change(next); err != nil {
			return err
		}
		next.FormatVersion = format.Version
		next.Rows += total.Rows - r.stored.Rows
		next.Versions += total.Versions - r.stored.Versions
		next.Cells += total.Cells - r.stored.Cells
		next.Bytes += total.Bytes - r.stored.Bytes
		noteSkipped(next, skipped)
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, runQualifier, 0, format.Marshal(next))
		m.Set(store.DeployFamily, versionQualifier, 0, version)
		column := store.ExactColumn(store.DeployFamily, versionQualifier)
		var matched bool
		var err error
		if r.version == nil {
			matched, err = r.client.Metadata.CheckAndMutate(ctx, store.GCRowKey, store.Interleave(column), nil, m)
			matched = !matched
		} else {
			matched, err = r.client.Metadata.CheckAndMutate(ctx, store.GCRowKey, store.Interleave(store.Chain(column, store.ExactValue(r.version))), m, nil)
		}
		if store.Permanent(err) {
			return err
		}
		if err != nil || !matched {
			if rerr := r.read(ctx); rerr != nil {
				return rerr
			}
			matched = bytes.Equal(r.version, version)
		} else {
			r.state, r.version = next, version
		}
		if matched {
			r.stored = total
			return nil
		}
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "gc: storing the position", err)
		}
	}
}

// same reports whether a record is that of the run that this collector works on.
func (r *run) same(g *recordpb.GarbageRun) bool {
	return tso.Timestamp(g.SafePoint) == r.report.SafePoint && g.StartedTs == r.startedTS
}

// adopt takes over what the record says about the run.
func (r *run) adopt() {
	r.setSafePoint(tso.Timestamp(r.state.SafePoint), r.state.Plain)
	r.startedTS, r.report.Changes = r.state.StartedTs, r.state.Changes
	r.setStreams(r.state.Rate)
}

// end completes the report.
func (r *run) end(began time.Time) {
	for _, name := range slices.Sorted(maps.Keys(r.counts)) {
		r.report.Tables = append(r.report.Tables, *r.counts[name])
	}
	r.report.Elapsed = time.Since(began)
}
