package notify

import (
	"context"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/pause"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// contendedPause is the longest pause before the next check of a cell whose advisory lock
// another worker holds.
const contendedPause = 100 * time.Millisecond

// A check brings the observers of one cell that run in this worker up to date with its
// changes, and removes its notifications once every registered observer has acknowledged
// them.
type check struct {
	worker *Worker
	lane   *lane
	task   task
}

// A result is how a check ended for one observer.
type result struct {
	observer string
	// seen is the observation that the result is based on; nil: there was none.
	seen *changes.Observation
	// upToDate: as of seen.StartTS the observer has nothing to do.
	upToDate bool
	// elsewhere: another worker acknowledged the change, as far as this one can see.
	elsewhere bool
	// failed: this run stored a failure, after it read seen.
	failed bool
	// again is when to check the cell again; 0: when it is found or hinted.
	again time.Duration
	// skip is how long the lane can refuse the cell when a finder offers it.
	skip time.Duration
}

// do checks the cell for each observer. It starts no run after ctx has ended; runs is the
// context of the runs. again is when to check the cell again; 0: when it is found or
// hinted.
func (c *check) do(ctx, runs context.Context) (again time.Duration) {
	w, t := c.worker, c.task
	lock := t.cell
	shared, shares := c.lane.shared(t.cell)
	if shares {
		if !c.lane.turns.take(shared, t.cell) {
			return 0 // endTurn offers the cell
		}
		defer c.lane.endTurn(ctx, shared)
		lock = shared
	}
	if w.locker.wanted() {
		if !w.locker.acquire(runs, lock) {
			w.counters.locked.Add(1)
			if t.contended != nil && !shares {
				t.contended()
				return 0 // the finder finds the cell again if the other worker fails
			}
			return pause.Jitter(contendedPause)
		}
		defer w.locker.hold(runs, lock)()
	}
	var results []result
	for _, h := range c.lane.handlers {
		r := c.observer(ctx, runs, h)
		if r.again > 0 && (again == 0 || r.again < again) {
			again = r.again
		}
		if r.skip > 0 {
			c.lane.skip(t.cell, changes.OracleNow(w.client), r.skip)
		}
		if r.seen != nil {
			results = append(results, r)
		}
		if r.elsewhere && t.contended != nil {
			t.contended() // the other worker's scan found the change before ours
			t.contended = nil
		}
	}
	if upTo := c.clear(results); upTo > 0 && len(results) == len(c.lane.handlers) {
		c.lane.skip(t.cell, upTo, registryMaxAge)
	}
	return again
}

// observer runs one observer until this run or another one has acknowledged the change,
// or the change has to wait.
func (c *check) observer(ctx, runs context.Context, h *handler) result {
	for attempt := 1; ; attempt++ {
		slot := h.acquire(ctx, c.worker.shared)
		if slot == nil {
			return result{}
		}
		r := &run{worker: c.worker, handler: h, cell: c.task.cell, began: time.Now()}
		r.do(runs)
		h.release(slot)
		res, retry := r.conclude(ctx, runs, attempt)
		if !retry {
			return res
		}
		_ = pause.For(ctx, pause.Jitter(time.Millisecond<<min(attempt, 8))) // acquire sees that ctx has ended
	}
}

// clear removes the cell's notifications if no registered observer has anything left to
// do. It removes only what every result has read. An observer that has not acknowledged a
// change does not run if it reads no notification (see need): one that has its timestamp,
// but arrives only then, must stay for the next check, even if a later result read it.
// elsewhere is the timestamp up to which the observers of this worker have nothing to do,
// if the notifications stay for observers of other workers; otherwise it is 0.
func (c *check) clear(results []result) (elsewhere tso.Timestamp) {
	if len(results) == 0 {
		return 0
	}
	last := slices.MaxFunc(results, func(a, b result) int { return int(a.seen.StartTS - b.seen.StartTS) }).seen
	cleared := changes.Cleared{Cell: c.task.cell, UpTo: last.KnownUpTo(), ChangeTS: last.KnownChange()}
	for _, r := range results {
		if !r.upToDate {
			return 0
		}
		cleared.UpTo = min(cleared.UpTo, r.seen.KnownUpTo())
		cleared.ChangeTS = min(cleared.ChangeTS, r.seen.KnownChange())
		if replays := r.seen.Replays(); cleared.Only == nil {
			cleared.Only = replays
		} else if replays != nil {
			cleared.Only = slices.DeleteFunc(cleared.Only, func(ts tso.Timestamp) bool { return !slices.Contains(replays, ts) })
		}
		if r.failed {
			cleared.Failures = append(cleared.Failures, r.observer)
			cleared.FailedTS = max(cleared.FailedTS, r.seen.StartTS)
		}
	}
	for _, observer := range last.Observers {
		here := slices.ContainsFunc(results, func(r result) bool { return r.observer == observer })
		if !here && last.Pending(observer) && !last.Parked(observer) {
			return cleared.UpTo // the change is pending for an observer of another worker
		}
	}
	for observer, f := range last.Failures {
		cleared.Failures = append(cleared.Failures, observer)
		cleared.FailedTS = max(cleared.FailedTS, f.LastTS)
	}
	if cleared.UpTo > 0 || len(cleared.Failures) > 0 {
		slices.Sort(cleared.Failures)
		cleared.Failures = slices.Compact(cleared.Failures)
		c.worker.cleaner.add(cleared)
	}
	return 0
}
