package gc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

const (
	// pageRows limits the rows of a page. A run holds a page of each stream in memory, and a
	// continued run may have to repeat them. store.MaxPageBytes limits its bytes.
	pageRows = 1024
	// maxStreams is how many parts of a table a run reads at a time.
	maxStreams = 16
	// rowsPerStream is how many rows a second one stream certainly reads. A lower Config.Rate
	// needs no second stream.
	rowsPerStream = 5000
)

// run is one run of garbage collection, or one plan.
type run struct {
	client  *recovery.Resolver
	cfg     Config
	owner   string
	limiter *rate.Limiter
	measure metrics
	page    int // rows of a page
	streams int // parts of a table that are read at a time

	mu sync.Mutex // guards report.Total, positions, and calls of cfg.Progress while parts are read

	report *Report
	locks  *lockResolver
	// state is the stored record of the run; before is what the run had done when
	// it was interrupted.
	state, before *recordpb.GarbageRun
	rules         rules
}

func newRun(c *recovery.Resolver, cfg Config, owner string) (*run, error) {
	measure, err := newMetrics(c.Store.Config.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("gc: metrics: %w", err)
	}
	r := &run{measure: measure, client: c, cfg: cfg, owner: owner, page: pageRows, streams: maxStreams, limiter: rate.NewLimiter(rate.Inf, 0), before: &recordpb.GarbageRun{}}
	if cfg.Rate > 0 {
		r.page = max(1, min(pageRows, int(cfg.Rate)))
		r.streams = int(min(maxStreams, 1+cfg.Rate/rowsPerStream))
		r.limiter = rate.NewLimiter(rate.Limit(cfg.Rate), r.page)
	}
	r.report = &Report{HeldBy: []Hold{}, Tables: []Counts{}}
	r.locks = &lockResolver{run: r}
	return r, nil
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
	retained := now - tso.Timestamp(r.cfg.Retention.Microseconds())
	p := retained
	for _, h := range holds {
		if h.OldestTS <= retained {
			r.report.HeldBy = append(r.report.HeldBy, h)
			p = min(p, h.OldestTS-1)
		}
	}
	return max(p, r.report.Previous), nil
}

func (r *run) setSafePoint(p tso.Timestamp, plain bool) {
	r.report.SafePoint, r.rules.safePoint, r.rules.plain = p, p, plain
}

// run does the work of Run.
func (r *run) run(ctx context.Context) error {
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	last, err := readRun(ctx, r.client)
	if err != nil {
		return err
	}
	if last.Phase == recordpb.GarbageRun_PHASE_COLLECT && !r.cfg.Restart {
		return r.resume(ctx, tables, last)
	}
	p, err := r.chooseSafePoint(ctx)
	if err != nil {
		return err
	}
	r.setSafePoint(p, r.cfg.Plain)
	r.report.Changes = last.FullTs != 0 && int64(r.report.Now)-last.FullTs < r.cfg.FullEvery.Microseconds() && !r.cfg.Restart
	done := last.Phase == recordpb.GarbageRun_PHASE_DONE && tso.Timestamp(last.SafePoint) >= p && !r.cfg.Restart && (r.report.Changes || !last.Changes)
	if p <= 0 || done {
		r.report.Nothing, r.report.Finished = true, true
		return nil
	}
	if p, err = r.client.SafePoint.Publish(ctx, p, r.report.Now, r.cfg.Retention, changes{r}.noteUntil()); err != nil {
		return err
	}
	published := time.Now()
	r.setSafePoint(p, r.cfg.Plain)
	r.state = &recordpb.GarbageRun{SafePoint: int64(p), StartedTs: int64(r.report.Now), RetentionMicros: r.cfg.Retention.Microseconds(), Plain: r.cfg.Plain, Changes: r.report.Changes, FullTs: last.FullTs}
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_FENCE); err != nil {
		return err
	}
	for _, name := range tables {
		r.measure.page(ctx, name, Counts{})
	}
	if err := r.phase(ctx, "wait for the fence", "", func(ctx context.Context) error { return r.fence(ctx, published) }); err != nil {
		return err
	}
	if r.report.Changes {
		return changes{r}.collect(ctx)
	}
	// Again: a transaction may have committed to a table that was made before the fence.
	if tables, err = r.openTables(ctx); err != nil {
		return err
	}
	if err = r.phase(ctx, "resolve locks", "", func(ctx context.Context) error { return r.locks.resolveAll(ctx, tables) }); err != nil {
		return err
	}
	now, err := r.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if r.rules.drained, err = r.client.SafePoint.LocksResolved(ctx, p, now, r.cfg.Retention); err != nil {
		return err
	}
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_COLLECT); err != nil {
		return err
	}
	return r.collectFrom(ctx, tables, "", "")
}

// resume continues an interrupted run with that run's safe point. That run had
// already waited for the fence and resolved the locks, and no lock or version can
// appear at or below its safe point since.
func (r *run) resume(ctx context.Context, tables []string, last *recordpb.GarbageRun) error {
	record, err := r.begin(ctx)
	if err != nil {
		return err
	}
	r.state, r.report.Resumed = last, true
	r.before = &recordpb.GarbageRun{Rows: last.Rows, Versions: last.Versions, Cells: last.Cells, Bytes: last.Bytes}
	r.setSafePoint(tso.Timestamp(last.SafePoint), last.Plain)
	r.rules.drained = min(tso.Timestamp(record.DrainedTs), r.rules.safePoint)
	return r.collectFrom(ctx, tables, last.Table, string(last.Row))
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
	for _, name := range tables {
		if err := r.table(ctx, name, "", r.count); err != nil {
			return err
		}
	}
	r.report.Finished = true
	return nil
}

// openTables opens every transactional table before anything is changed. Opening
// verifies the table's families, if the client has an admin client.
func (r *run) openTables(ctx context.Context) ([]string, error) {
	names, err := r.client.TableNames(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var there []string
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
			there = append(there, name)
		}
	}
	return there, nil
}

// fence waits until no client uses an older safe point. It measures with the
// monotonic clock of this process; if the machine sleeps, the fence gets longer.
func (r *run) fence(ctx context.Context, published time.Time) error {
	for {
		left := gctime.Fence() - time.Since(published)
		if left <= 0 {
			return nil
		}
		r.cfg.Progress(Progress{Phase: PhaseFence, Left: left, Total: r.report.Total})
		if store.Sleep(ctx, min(left, time.Second)) != nil {
			return store.Ended(ctx, "gc: collecting garbage: waiting until every client uses the new safe point; nothing was removed", nil)
		}
	}
}

// collectFrom collects everything after a row of a table, and completes the run.
func (r *run) collectFrom(ctx context.Context, tables []string, table, row string) error {
	for _, name := range tables {
		if name < table {
			continue
		}
		after := ""
		if name == table {
			after = row
		}
		if err := r.phase(ctx, "collect", name, func(ctx context.Context) error { return r.table(ctx, name, after, r.collectPage) }); err != nil {
			return err
		}
	}
	if err := (changes{r}).dropNotes(ctx); err != nil {
		return err
	}
	r.state.FullTs = r.state.StartedTs
	return r.finish(ctx)
}

// finish notes that the run is complete.
func (r *run) finish(ctx context.Context) error {
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_DONE); err != nil {
		return err
	}
	r.report.Finished = true
	return nil
}

// table reads the rows of a table after a row, page by page, and calls do with
// each page. It reads up to streams parts of the table at a time.
func (r *run) table(ctx context.Context, name, after string, do func(context.Context, *store.Table, []bigtable.Row, *Counts) error) error {
	t, err := r.client.Table(ctx, name)
	if err != nil {
		return err
	}
	s, err := t.Schema.Fresh(ctx)
	if err != nil {
		return err
	}
	filter := r.rules.filter(s.Families)
	r.report.Tables = append(r.report.Tables, Counts{Table: name})
	p := &position{table: name, after: after, counts: &r.report.Tables[len(r.report.Tables)-1]}
	for _, rest := range r.parts(ctx, t, after) {
		p.parts = append(p.parts, part{rest: rest})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.streams)
	for i := range p.parts {
		g.Go(func() error { return r.part(gctx, t, filter, p, i, do) })
	}
	err = g.Wait()
	if !r.report.DryRun && p.after != after {
		// Also after an error, so that the next run need not repeat what was collected.
		err = cmp.Or(err, r.savePosition(ctx, p))
	}
	return err
}

// parts returns the parts of a table after a row that the run reads at a time.
func (r *run) parts(ctx context.Context, t *store.Table, after string) []store.RowSet {
	rest := store.AllAfter(after)
	if r.streams == 1 {
		return []store.RowSet{rest}
	}
	return t.Tablets(ctx, rest)
}

// A position says how far a run is in a table. It is guarded by run.mu.
type position struct {
	table  string
	after  string // everything up to this row is collected
	parts  []part // in the order of their keys
	counts *Counts
	saving bool      // after is being stored
	saved  time.Time // when that began last
}

// A part is one of the parts of a table that a run reads concurrently.
type part struct {
	rest  store.RowSet // what is not collected yet
	after string       // everything in the part up to this row is collected
}

// saveInterval is how often a run stores its position.
const saveInterval = time.Second

// part collects one part of a table.
func (r *run) part(ctx context.Context, t *store.Table, filter bigtable.Filter, p *position, i int, do func(context.Context, *store.Table, []bigtable.Row, *Counts) error) error {
	return r.pages(ctx, t, p.parts[i].rest, filter, func(page []bigtable.Row, left store.RowSet) error {
		done, after := Counts{Rows: int64(len(page))}, left.Before()
		if len(page) > 0 {
			after = page[len(page)-1].Key()
			if err := do(ctx, t, page, &done); err != nil {
				return err
			}
		}
		return r.collected(ctx, p, i, part{left, after}, done)
	})
}

// pages reads rows page by page, as fast as Config.Rate allows, and calls do with each page, which
// may be empty, and with what is left after it.
func (r *run) pages(ctx context.Context, t *store.Table, rest store.RowSet, filter bigtable.Filter, do func([]bigtable.Row, store.RowSet) error) error {
	var pieces store.Pieces
	for !rest.Empty() {
		var page []bigtable.Row
		var left store.RowSet
		bytes := 0
		err := r.retry(ctx, func() (err error) {
			page, bytes = nil, 0
			left, err = t.ReadPage(ctx, &pieces, rest, r.page, filter, func(raw bigtable.Row) bool {
				page = append(page, raw)
				bytes += store.RowBytes(raw)
				return bytes < store.MaxPageBytes
			})
			return err
		})
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

// collected notes that a page of a part is collected.
func (r *run) collected(ctx context.Context, p *position, i int, now part, done Counts) error {
	if save := r.note(ctx, p, i, now, done); !save {
		return nil
	}
	err := r.savePosition(ctx, p)
	r.mu.Lock()
	defer r.mu.Unlock()
	p.saving = false
	return err
}

// note does the work of collected, and reports whether the caller has to save the position.
func (r *run) note(ctx context.Context, p *position, i int, now part, done Counts) (save bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.parts[i] = now
	if now.after == "" && i+1 < len(p.parts) {
		p.parts[i].after = p.parts[i+1].rest.Before()
	}
	for j := range p.parts {
		if after := p.parts[j].after; after != "" {
			p.after = after
		}
		if !p.parts[j].rest.Empty() {
			break // a later part may be done, but this one is not
		}
	}
	if !r.report.DryRun {
		r.measure.page(ctx, p.table, done)
	}
	p.counts.add(done)
	r.report.Total.add(done)
	r.cfg.Progress(Progress{Phase: PhaseCollect, Table: p.table, Row: p.after, Total: r.report.Total})
	if r.report.DryRun || p.saving || time.Since(p.saved) < saveInterval || ctx.Err() != nil {
		return false
	}
	p.saving, p.saved = true, time.Now()
	return true
}

// savePosition stores the position, also while the run is being interrupted, so
// that the next run need not repeat the page.
func (r *run) savePosition(ctx context.Context, p *position) error {
	r.mu.Lock()
	r.state.Table, r.state.Row = p.table, []byte(p.after)
	r.mu.Unlock()
	if ctx.Err() == nil {
		return r.save(ctx, recordpb.GarbageRun_PHASE_COLLECT)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return store.Ended(ctx, "gc: collecting garbage", r.save(last, recordpb.GarbageRun_PHASE_COLLECT))
}

// count adds up the garbage of a page and removes nothing.
func (r *run) count(_ context.Context, t *store.Table, page []bigtable.Row, done *Counts) error {
	for _, raw := range page {
		g := r.rules.row(t, raw)
		r.locks.mu.Lock()
		r.report.Locks.Found += int64(len(g.locks))
		r.locks.mu.Unlock()
		if g.err != nil {
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
			r.client.Log.WarnContext(ctx, "garbage of a row is not collected, its records are damaged", "table", t.Name, "error", g.err)
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
			changed := false
			for _, part := range g.conditional() {
				var matched bool
				err := r.retry(ctx, func() (err error) {
					matched, err = t.CheckAndMutate(ctx, key, part.unless, nil, part.mut)
					return err
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
			raw, err = t.ReadRow(ctx, key, r.rules.filter(t.Schema.Current().Families))
			return err
		})
		if err != nil {
			return Counts{}, err
		}
	}
	return Counts{RowsSkipped: 1}, nil
}

// applyAll sends unconditional mutations until all are applied.
func (r *run) applyAll(ctx context.Context, t *store.Table, muts []store.RowMutation) error {
	return r.retry(ctx, func() (err error) {
		muts, err = t.Apply(ctx, muts)
		return err
	})
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

// save stores how far the run is. It needs no condition: it says what was done
// for a safe point, and that stays true, whatever record it replaces and whenever
// it arrives.
func (r *run) save(ctx context.Context, phase recordpb.GarbageRun_Phase) error {
	now, err := r.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	t := r.report.Total
	r.mu.Unlock()
	r.state.FormatVersion, r.state.Phase, r.state.UpdatedTs, r.state.Owner = format.Version, phase, int64(now), r.owner
	r.state.Rows, r.state.Versions = r.before.Rows+t.Rows, r.before.Versions+t.Versions
	r.state.Cells, r.state.Bytes = r.before.Cells+t.Cells, r.before.Bytes+t.Bytes
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, runQualifier, 0, format.Marshal(r.state))
	return r.applyAll(ctx, r.client.Metadata, []store.RowMutation{{Row: store.GCRowKey, Mut: m, Ops: 1}})
}

// phase traces a part of a run as one span. Its requests get no spans of their
// own: there are as many as pages of rows.
func (r *run) phase(ctx context.Context, name, table string, do func(context.Context) error) error {
	ctx, s := r.client.Trace.Begin(ctx, name, table)
	if s.Recording() {
		ctx = trace.ContextWithSpanContext(ctx, s.SpanContext())
	}
	before := r.report.Total.Rows
	err := do(ctx)
	if table != "" {
		s.Set(telemetry.AttrRows.Int64(r.report.Total.Rows - before))
	}
	s.EndWith(err)
	return err
}
