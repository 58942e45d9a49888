package txn

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// gcPageRows bounds what a run holds in memory, together with maxPageBytes, and
// how much of it a resumed run does again.
const gcPageRows = 1024

// gcRun is one run of garbage collection, or one plan.
type gcRun struct {
	client  *resolver
	cfg     GCConfig
	owner   string
	limiter *rate.Limiter
	measure gcMetrics
	page    int

	report *GCReport
	locks  sync.Mutex // guards report.Locks
	// state is what is stored of the run, before what earlier parts of it did.
	state  *recordpb.GarbageRun
	before *recordpb.GarbageRun
	rules  gcRules
}

func newGCRun(c *resolver, cfg GCConfig, owner string) (*gcRun, error) {
	measure, err := newGCMetrics(c.store.cfg.MeterProvider)
	if err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	r := &gcRun{measure: measure, client: c, cfg: cfg, owner: owner, page: gcPageRows, limiter: rate.NewLimiter(rate.Inf, 0), before: &recordpb.GarbageRun{}}
	if cfg.Rate > 0 {
		r.page = max(1, min(gcPageRows, int(cfg.Rate)))
		r.limiter = rate.NewLimiter(rate.Limit(cfg.Rate), r.page)
	}
	r.report = &GCReport{HeldBy: []GCHold{}, Tables: []GCTable{}}
	return r, nil
}

// choose finds the safe point of a new run (design §8 rule 1): as late as the
// retention allows, below every open transaction that is known of, and never
// before the one that is published.
func (r *gcRun) choose(ctx context.Context) (tso.Timestamp, error) {
	now, err := r.client.clock.timestamp(ctx)
	if err != nil {
		return 0, err
	}
	record, _, err := r.client.safePoint.readRecord(ctx)
	if err != nil {
		return 0, err
	}
	holds, err := readHolds(ctx, r.client, now)
	if err != nil {
		return 0, err
	}
	r.report.Now, r.report.Previous = now, tso.Timestamp(record.Ts)
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

func (r *gcRun) setSafePoint(p tso.Timestamp, retention time.Duration, plain bool) {
	r.report.SafePoint = p
	r.rules = gcRules{safePoint: p, deletesUpTo: p - tso.Timestamp(retention.Microseconds()), plain: plain}
}

// run does the work of RunGC.
func (r *gcRun) run(ctx context.Context) error {
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	last, err := readGCRun(ctx, r.client)
	if err != nil {
		return err
	}
	if last.Phase == recordpb.GarbageRun_PHASE_COLLECT && !r.cfg.Restart {
		return r.resume(ctx, tables, last)
	}
	p, err := r.choose(ctx)
	if err != nil {
		return err
	}
	r.setSafePoint(p, r.cfg.Retention, r.cfg.Plain)
	done := last.Phase == recordpb.GarbageRun_PHASE_DONE && tso.Timestamp(last.SafePoint) >= p && !r.cfg.Restart
	if p <= 0 || done {
		r.report.Nothing, r.report.Finished = true, true
		return nil
	}
	if p, err = r.client.safePoint.publish(ctx, p, r.report.Now, r.cfg.Retention); err != nil {
		return err
	}
	published := time.Now()
	r.setSafePoint(p, r.cfg.Retention, r.cfg.Plain)
	r.state = &recordpb.GarbageRun{SafePoint: int64(p), StartedTs: int64(r.report.Now), RetentionMicros: r.cfg.Retention.Microseconds(), Plain: r.cfg.Plain}
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_FENCE); err != nil {
		return err
	}
	for _, name := range tables {
		r.measure.page(ctx, name, GCTable{})
	}
	if err := r.phase(ctx, "wait for the fence", "", func(ctx context.Context) error { return r.fence(ctx, published) }); err != nil {
		return err
	}
	if err := r.phase(ctx, "resolve locks", "", func(ctx context.Context) error { return r.resolveLocks(ctx, tables) }); err != nil {
		return err
	}
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_COLLECT); err != nil {
		return err
	}
	return r.collectFrom(ctx, tables, "", "")
}

// resume goes on where a run was interrupted, with that run's safe point. It
// had come behind its fence and its locks, and both stay true of that safe
// point: nothing at or below it can come any more.
func (r *gcRun) resume(ctx context.Context, tables []string, last *recordpb.GarbageRun) error {
	record, _, err := r.client.safePoint.readRecord(ctx)
	if err != nil {
		return err
	}
	r.report.Previous = tso.Timestamp(record.Ts)
	if r.report.Now, err = r.client.clock.timestamp(ctx); err != nil {
		return err
	}
	r.state, r.report.Resumed = last, true
	r.before = &recordpb.GarbageRun{Rows: last.Rows, Versions: last.Versions, Cells: last.Cells, Bytes: last.Bytes}
	r.setSafePoint(tso.Timestamp(last.SafePoint), time.Duration(last.RetentionMicros)*time.Microsecond, last.Plain)
	return r.collectFrom(ctx, tables, last.Table, string(last.Row))
}

// plan does the work of PlanGC.
func (r *gcRun) plan(ctx context.Context) error {
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	p, err := r.choose(ctx)
	if err != nil {
		return err
	}
	r.setSafePoint(p, r.cfg.Retention, r.cfg.Plain)
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

// openTables opens every transactional table, which verifies it where that is
// possible, before anything is changed.
func (r *gcRun) openTables(ctx context.Context) ([]string, error) {
	names, err := r.client.tableNames(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	for _, name := range names {
		t, err := r.client.table(ctx, name)
		if err != nil {
			return nil, err
		}
		if _, err := t.schema.fresh(ctx); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// fence waits, on this process's own monotonic clock, until nobody goes by an
// older safe point (design §8 rule 3). A machine that sleeps makes it longer.
func (r *gcRun) fence(ctx context.Context, published time.Time) error {
	for {
		left := gctime.Fence() - time.Since(published)
		if left <= 0 {
			return nil
		}
		r.cfg.Progress(GCProgress{Phase: GCFence, Left: left, Total: r.report.Total})
		if sleep(ctx, min(left, time.Second)) != nil {
			return ended(ctx, "waiting until every client goes by the new safe point; nothing was removed", nil)
		}
	}
}

// collectFrom collects what comes after a row of a table, and ends the run.
func (r *gcRun) collectFrom(ctx context.Context, tables []string, table, row string) error {
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
	if err := r.save(ctx, recordpb.GarbageRun_PHASE_DONE); err != nil {
		return err
	}
	r.report.Finished = true
	return nil
}

// table reads the rows of a table behind a row, page by page.
func (r *gcRun) table(ctx context.Context, name, after string, do func(context.Context, *table, []bigtable.Row, *GCTable) error) error {
	t, err := r.client.table(ctx, name)
	if err != nil {
		return err
	}
	s, err := t.schema.fresh(ctx)
	if err != nil {
		return err
	}
	filter := r.rules.filter(s.families)
	r.report.Tables = append(r.report.Tables, GCTable{Table: name})
	counts := &r.report.Tables[len(r.report.Tables)-1]
	for more := true; more; {
		var page []bigtable.Row
		bytes := 0
		err := r.again(ctx, func() (err error) {
			page, bytes = nil, 0
			more, err = t.readPage(ctx, bigtable.InfiniteRange(after+"\x00"), r.page, filter, func(raw bigtable.Row) bool {
				page = append(page, raw)
				bytes += rowBytes(raw)
				return bytes < maxPageBytes
			})
			return err
		})
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		if err := r.limiter.WaitN(ctx, len(page)); err != nil {
			if ctx.Err() == nil { // it will have ended by then
				return fmt.Errorf("txn: collecting garbage: %w: %w", context.DeadlineExceeded, err)
			}
			return ended(ctx, "collecting garbage", err)
		}
		done := GCTable{Rows: int64(len(page))}
		if err := do(ctx, t, page, &done); err != nil {
			return err
		}
		if !r.report.DryRun {
			r.measure.page(ctx, name, done)
		}
		after = page[len(page)-1].Key()
		counts.add(done)
		r.report.Total.add(done)
		r.cfg.Progress(GCProgress{Phase: GCCollect, Table: name, Row: after, Total: r.report.Total})
		if !r.report.DryRun {
			r.state.Table, r.state.Row = name, []byte(after)
			if err := r.savePosition(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// savePosition stores what was done also when the run is just being interrupted,
// so that the next one need not do it again.
func (r *gcRun) savePosition(ctx context.Context) error {
	if ctx.Err() == nil {
		return r.save(ctx, recordpb.GarbageRun_PHASE_COLLECT)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return ended(ctx, "collecting garbage", r.save(last, recordpb.GarbageRun_PHASE_COLLECT))
}

// count is the page of a plan.
func (r *gcRun) count(_ context.Context, t *table, page []bigtable.Row, done *GCTable) error {
	for _, raw := range page {
		g := r.rules.judge(t, raw)
		r.report.Locks.Found += int64(len(g.locks))
		if g.err != nil {
			done.RowsSkipped++
		}
		done.add(g.counts)
	}
	return nil
}

// collectPage removes the garbage of a page of rows: all that needs no condition
// in one request, the rest row by row.
func (r *gcRun) collectPage(ctx context.Context, t *table, page []bigtable.Row, done *GCTable) error {
	var muts []rowMutation
	var alone []bigtable.Row
	for _, raw := range page {
		g := r.rules.judge(t, raw)
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
	counts := make([]GCTable, len(alone))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.client.store.cfg.Parallelism)
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
// point, or a newest delete that may go. A lock cannot be there, unless it came
// later than anything may; it is settled all the same. A newest delete goes only
// if what it hides is still absent.
func (r *gcRun) collectRow(ctx context.Context, t *table, raw bigtable.Row) (GCTable, error) {
	key := raw.Key()
	for range 3 {
		g := r.rules.judge(t, raw)
		switch {
		case g.err != nil:
			r.client.log.WarnContext(ctx, "garbage of a row is not collected, its records are damaged", "table", t.name, "error", g.err)
			return GCTable{RowsSkipped: 1}, nil
		case len(g.locks) > 0:
			for _, l := range g.locks {
				if _, err := r.settle(ctx, l); err != nil {
					return GCTable{}, err
				}
			}
		default:
			changed := false
			for _, part := range g.conditional() {
				var matched bool
				err := r.again(ctx, func() (err error) {
					matched, err = t.checkAndMutate(ctx, key, part.unless, nil, part.mut)
					return err
				})
				if err != nil {
					return GCTable{}, err
				}
				changed = changed || matched
			}
			if !changed {
				return g.counts, r.applyAll(ctx, t, g.mutations(key))
			}
		}
		// The row is not what it was.
		err := r.again(ctx, func() (err error) {
			raw, err = t.readRow(ctx, key, r.rules.filter(t.schema.current().families))
			return err
		})
		if err != nil {
			return GCTable{}, err
		}
		if len(raw) == 0 {
			return GCTable{}, nil
		}
	}
	return GCTable{RowsSkipped: 1}, nil
}

// applyAll sends unconditional mutations until all are applied.
func (r *gcRun) applyAll(ctx context.Context, t *table, muts []rowMutation) error {
	return r.again(ctx, func() (err error) {
		muts, err = t.apply(ctx, muts)
		return err
	})
}

// again repeats what may be repeated until it succeeds, is refused, or ctx ends.
func (r *gcRun) again(ctx context.Context, f func() error) error {
	for pause := r.client.store.cfg.Backoff.start(); ; {
		err := f()
		if err == nil || permanent(err) {
			return err
		}
		if pause.wait(ctx, 0) != nil {
			return ended(ctx, "collecting garbage", err)
		}
	}
}
