package gc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A leader does the work of a run for the collector that has the lease: it chooses the safe point,
// and begins the phases.
type leader struct{ *run }

// lead does the work of Run for the collector that has the lease. It continues an interrupted
// run with that run's safe point: the record says what is done for it, and no lock or version
// can appear at or below it since.
func (r leader) lead(ctx context.Context) error {
	tables, err := r.openTables(ctx)
	if err != nil {
		return err
	}
	if err := r.read(ctx); err != nil {
		return err
	}
	if r.report.Helped {
		if over, err := (helper(r)).over(); over {
			return err
		}
	}
	p, err := r.chooseSafePoint(ctx)
	if err != nil {
		return err
	}
	changed, resumes, done := r.next(p)
	if resumes {
		r.report.HeldBy, r.report.Resumed = []Hold{}, true
		return r.resume(ctx, tables)
	}
	r.setSafePoint(p, r.cfg.Plain)
	if r.report.Changes = changed; done {
		r.report.Nothing, r.report.Finished = true, true
		return nil
	}
	if p, err = r.client.SafePoint.Publish(ctx, p, r.report.Now, r.cfg.Retention, changes(r).noteUntil()); err != nil {
		return err
	}
	published := time.Now()
	r.setSafePoint(p, r.cfg.Plain)
	r.startedTS = int64(r.report.Now)
	err = r.update(ctx, func(g *recordpb.GarbageRun) error {
		full, skipped := g.FullTs, g.Skipped
		proto.Reset(g)
		g.SafePoint, g.StartedTs, g.UpdatedTs, g.RetentionMicros, g.Plain, g.Changes, g.FullTs = int64(p), r.startedTS, r.startedTS, r.cfg.Retention.Microseconds(), r.cfg.Plain, changed, full
		if changed {
			g.Skipped = skipped
		}
		g.Phase, g.Owner, g.Rate = recordpb.GarbageRun_PHASE_FENCE, r.owner, r.cfg.Rate
		return nil
	})
	if err != nil {
		return err
	}
	r.setStreams(r.cfg.Rate)
	for _, t := range tables {
		r.measure.page(ctx, t.Name, Counts{})
	}
	if err := r.phase(ctx, "wait for the fence", func(ctx context.Context) error { return r.fence(ctx, published) }); err != nil {
		return err
	}
	if changed {
		parts, err := changes(r).divide(ctx)
		if err != nil {
			return err
		}
		if err := r.enter(ctx, recordpb.GarbageRun_PHASE_CHANGES, parts); err != nil {
			return err
		}
		return r.goOn(ctx)
	}
	if err := r.enter(ctx, recordpb.GarbageRun_PHASE_LOCKS, divide(ctx, r.run, tables, position{})); err != nil {
		return err
	}
	return r.goOn(ctx)
}

// next says what a leader does after the last run, if the next safe point is p: whether it follows
// changes, continues that run, or has nothing to do.
func (r leader) next(p tso.Timestamp) (changed, resumes, done bool) {
	last := r.state
	changed = last.FullTs != 0 && int64(r.report.Now)-last.FullTs < r.cfg.FullEvery.Microseconds() && !r.cfg.Restart
	switch last.Phase {
	case recordpb.GarbageRun_PHASE_COLLECT, recordpb.GarbageRun_PHASE_LOCKS, recordpb.GarbageRun_PHASE_CHANGES:
		resumes = !r.cfg.Restart && (changed || r.report.Helped || !last.Changes) && (last.Divided || last.Phase == recordpb.GarbageRun_PHASE_COLLECT)
	case recordpb.GarbageRun_PHASE_DONE:
		done = tso.Timestamp(last.SafePoint) >= p && !r.cfg.Restart && (changed || !last.Changes)
	}
	return changed, resumes, done || p <= 0
}

// resume leads an interrupted run.
func (r leader) resume(ctx context.Context, tables []*store.Table) (err error) {
	r.adopt()
	parts := r.state.Parts
	if !r.state.Divided {
		// It is of a release that does not know parts.
		row := string(r.state.Row)
		parts = divide(ctx, r.run, tables, position{r.state.Table, store.AllAfter(row).Ranges[0].Start})
	}
	if err = r.update(ctx, func(g *recordpb.GarbageRun) error { return r.resumed(g, parts) }); err != nil {
		return err
	}
	r.setStreams(r.state.Rate)
	return r.goOn(ctx)
}

// resumed writes into the record that this collector leads the run; parts are for one without.
func (r leader) resumed(g *recordpb.GarbageRun, parts []*recordpb.GarbageRun_Part) error {
	if !r.same(g) {
		return &BusyError{Holder: g.Owner, Lost: true}
	}
	if g.Owner = r.owner; !g.Divided {
		g.Divided, g.Parts = true, parts
	}
	if !r.report.Helped { // otherwise the limit of the collector that died stays
		g.Rate = r.cfg.Rate
	}
	return nil
}

// goOn leads the run through the phase that it is in, and the next ones.
func (r leader) goOn(ctx context.Context) error {
	err := r.work(ctx)
	if errors.Is(err, errPhaseOver) {
		return &BusyError{Holder: r.state.Owner, Lost: true}
	}
	var blocked *BlockedError
	if errors.As(err, &blocked) && r.state.Phase == recordpb.GarbageRun_PHASE_LOCKS {
		// The next run begins anew.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		return cmp.Or(err, r.enter(last, recordpb.GarbageRun_PHASE_FENCE, nil))
	}
	if err != nil {
		return err
	}
	switch r.state.Phase {
	case recordpb.GarbageRun_PHASE_LOCKS:
		now, err := r.client.Clock.Timestamp(ctx)
		if err != nil {
			return err
		}
		if _, err := r.client.SafePoint.LocksResolved(ctx, r.report.SafePoint, now, time.Duration(r.state.RetentionMicros)*time.Microsecond); err != nil {
			return err
		}
		tables, err := r.openTables(ctx)
		if err != nil {
			return err
		}
		if err := r.enter(ctx, recordpb.GarbageRun_PHASE_COLLECT, divide(ctx, r.run, tables, position{})); err != nil {
			return err
		}
		return r.goOn(ctx)
	case recordpb.GarbageRun_PHASE_COLLECT:
		if err := changes(r).dropNotes(ctx); err != nil {
			return err
		}
	}
	if err := r.enter(ctx, recordpb.GarbageRun_PHASE_DONE, nil); err != nil {
		return err
	}
	r.report.Finished = true
	return nil
}

// fence waits until no client uses an older safe point. It measures with the
// monotonic clock of this process; if the machine sleeps, the fence gets longer.
func (r leader) fence(ctx context.Context, published time.Time) error {
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

// enter begins a phase, as the leader. A collector that was replaced begins none: its parts would
// have the numbers of parts that others work on, with other rows.
func (r leader) enter(ctx context.Context, phase recordpb.GarbageRun_Phase, parts []*recordpb.GarbageRun_Part) error {
	now, err := r.client.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	return r.update(ctx, func(g *recordpb.GarbageRun) error { return r.begun(g, now, phase, parts) })
}

// begun writes into the record that a phase begins.
func (r leader) begun(g *recordpb.GarbageRun, now tso.Timestamp, phase recordpb.GarbageRun_Phase, parts []*recordpb.GarbageRun_Part) error {
	if !r.same(g) || g.Owner != r.owner {
		return &BusyError{Holder: g.Owner, Lost: true}
	}
	g.Phase, g.Parts, g.Divided, g.UpdatedTs = phase, parts, parts != nil, int64(now)
	if !r.report.Helped { // otherwise the operator's limit is that of the dead collector
		g.Rate = r.cfg.Rate
	}
	if phase == recordpb.GarbageRun_PHASE_DONE {
		g.Collectors = nil
		if !g.Changes {
			g.FullTs = g.StartedTs
		}
	}
	setPosition(g)
	return nil
}
