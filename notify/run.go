package notify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// contended is how long to wait, on average, before looking again at a cell
// that another worker is at.
const contended = 100 * time.Millisecond

// forever is the NotBefore of a parked change.
const forever = format.Never

// process looks at one cell for each of its observers here, and removes its
// notifications if every registered observer has acknowledged them. again is
// when to look at it once more; 0: when it is found or hinted.
func (w *Worker) process(ctx, runs context.Context, lane *lane, t task) (again time.Duration) {
	if w.locker.wanted() {
		if !w.locker.acquire(runs, t.cell) {
			w.counters.locked.Add(1)
			if t.met != nil {
				t.met()
				return 0 // it is found again, if the other one does not see to it
			}
			return jitter(contended)
		}
		defer w.locker.hold(runs, t.cell)()
	}
	var looks []look
	for _, h := range lane.handlers {
		if ctx.Err() != nil {
			return 0
		}
		l := w.handle(ctx, runs, h, t.cell)
		if l.again > 0 && (again == 0 || l.again < again) {
			again = l.again
		}
		if l.settled > 0 {
			lane.settle(t.cell.Row, changes.OracleNow(w.client), l.settled)
		}
		if l.seen != nil {
			looks = append(looks, l)
		}
		if l.elsewhere && t.met != nil {
			t.met() // its scan has found the change before
			t.met = nil
		}
	}
	if upTo := w.clear(t.cell, looks); upTo > 0 && len(looks) == len(lane.handlers) {
		lane.settle(t.cell.Row, upTo, registryMaxAge)
	}
	return again
}

// A look is what came of a cell for one observer.
type look struct {
	observer string
	// seen is the observation that it was decided by; nil if there was none.
	seen *changes.Observation
	// done: as of seen.StartTS the observer has nothing to do.
	done bool
	// elsewhere: another worker has acknowledged the change, as far as one can
	// tell.
	elsewhere bool
	// failed: a failure was stored after seen was read.
	failed bool
	// again is when to look once more; 0: when it is found or hinted.
	again time.Duration
	// settled: a finder need not offer the cell again for that long.
	settled time.Duration
}

// clear removes the notifications that were known in the earliest look at which an
// observer was seen to have nothing to do, if there is one for every registered
// observer (design §7). elsewhere is that timestamp if all observers here are
// done and the notifications stay for those of other workers; else 0.
func (w *Worker) clear(cell txn.Cell, looks []look) (elsewhere tso.Timestamp) {
	if len(looks) == 0 {
		return 0
	}
	last := slices.MaxFunc(looks, func(a, b look) int { return int(a.seen.StartTS - b.seen.StartTS) }).seen
	cleared := changes.Cleared{Cell: cell, UpTo: last.KnownUpTo()}
	failures := map[string]bool{}
	for _, l := range looks {
		if !l.done {
			return 0
		}
		cleared.UpTo = min(cleared.UpTo, l.seen.KnownUpTo())
		if l.failed {
			failures[l.observer] = true
		}
	}
	for _, observer := range last.Observers {
		here := slices.ContainsFunc(looks, func(l look) bool { return l.observer == observer })
		if !here && last.Pending(observer) && !parked(last, observer) {
			return cleared.UpTo // it has still to see it, elsewhere
		}
	}
	for observer := range last.Failures {
		failures[observer] = true
	}
	if len(last.Triggers) > 0 || len(failures) > 0 {
		cleared.Failures = slices.Sorted(maps.Keys(failures))
		w.cleaner.add(cleared)
	}
	return 0
}

// parked reports that the newest change is a dead letter for the observer.
func parked(o *changes.Observation, observer string) bool {
	f, ok := o.Failures[observer]
	return ok && f.ChangeTS == o.ChangeTS && f.NotBefore == forever
}

// handle brings one observer up to date with one cell: it runs it until the
// change is acknowledged, by this run or another, or has to wait.
func (w *Worker) handle(ctx, runs context.Context, h *handler, cell txn.Cell) look {
	for attempt := 1; ; attempt++ {
		if !w.mayRun(ctx, h) {
			return look{}
		}
		r := &run{worker: w, handler: h, cell: cell, began: time.Now()}
		r.do(runs)
		<-w.slots
		<-h.slots
		l, retry := r.settle(ctx, runs, attempt)
		if !retry {
			return l
		}
		if sleep(ctx, jitter(time.Millisecond<<min(attempt, 8))) != nil {
			return look{}
		}
	}
}

// mayRun waits for the observer's rate limit and for its and the worker's
// concurrency, or until ctx ends.
func (w *Worker) mayRun(ctx context.Context, h *handler) bool {
	if h.limiter != nil && h.limiter.Wait(ctx) != nil {
		return false
	}
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		<-h.slots
		return false
	}
	if ctx.Err() != nil { // both were ready
		<-w.slots
		<-h.slots
		return false
	}
	return true
}

// A run is one transaction of an observer.
type run struct {
	worker  *Worker
	handler *handler
	cell    txn.Cell
	began   time.Time

	startTS  tso.Timestamp // of its transaction
	seen     *changes.Observation
	called   bool // the observer was
	commitTS tso.Timestamp
	outcome  Outcome
	err      error
	span     trace.Span // ended by tell; nil until there is something to see
}

// do looks at the cell and, if there is something to do, runs the observer and
// commits. What is left behind after an error is nothing, or an undetermined
// commit.
func (r *run) do(ctx context.Context) {
	h := r.handler
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	// Most looks find nothing to do. A trace begins where one does, or where it
	// has to settle what somebody left.
	begin := func(ctx context.Context) context.Context {
		ctx, r.span = r.worker.telemetry.begin(ctx, h, r.began)
		return ctx
	}
	tx, err := r.worker.client.Begin(ctx, append([]txn.TxnOption{txn.Named(h.id), changes.TraceLater(begin)}, h.txnOptions...)...)
	if err != nil {
		r.outcome, r.err = Unknown, err
		return
	}
	defer tx.Rollback()
	r.startTS = tx.StartTS()
	if r.seen, err = changes.Observe(ctx, tx, r.cell); err != nil {
		r.outcome, r.err = Unknown, err
		return
	}
	r.outcome = r.need()
	if r.outcome != Acknowledged && r.outcome != Waiting {
		ctx = changes.StartTrace(ctx, tx)
	}
	link(r.span, r.seen)
	if r.outcome != "" {
		return
	}
	// First, so that the acknowledgment is the primary: an observer's write
	// records lead to what it ran for.
	changes.Acknowledge(tx, r.seen, h.id)
	r.called = true
	r.worker.counters.runs.Add(1)
	if err = r.call(context.WithValue(ctx, triggerKey{}, r.seen), tx); err == nil {
		r.commitTS, err = tx.Commit(ctx)
	}
	r.outcome, r.err = r.classify(err), err
}

// need says why the observer need not run; empty: it does.
func (r *run) need() Outcome {
	id, o := r.handler.id, r.seen
	// A change has its notify cell in the row until it was dealt with: without
	// one it was acknowledged, or became a dead letter that nobody is to revive.
	if !slices.Contains(o.Observers, id) || !o.Pending(id) || len(o.Triggers) == 0 {
		return Acknowledged
	}
	if f, ok := o.Failures[id]; ok && f.ChangeTS == o.ChangeTS && f.NotBefore > o.StartTS {
		return Waiting
	}
	if most := r.worker.cfg.MaxHops; most >= 0 && r.hops() > most {
		return Parked
	}
	return ""
}

func (r *run) hops() int {
	most := 0
	for _, t := range r.seen.Triggers {
		most = max(most, t.Hops)
	}
	return most
}

// call runs the observer. A panic is its error.
func (r *run) call(ctx context.Context, tx *txn.Txn) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return r.handler.observer.Observe(ctx, tx, r.cell)
}

func (r *run) classify(err error) Outcome {
	var conflict *txn.ConflictError
	var unknown *txn.UndeterminedError
	var put *snooze
	switch {
	case err == nil:
		return Committed
	case errors.As(err, &unknown) && unknown.StartTS != r.startTS, errors.As(err, &conflict) && conflict.StartTS != r.startTS:
		return Failed // of another transaction, which the observer has made
	case unknown != nil:
		return Unknown
	case errors.As(err, &put):
		return Snoozed
	case errors.Is(err, errDrop):
		return Dropped
	case errors.As(err, &conflict) && r.ownAck(conflict):
		return LostRace
	case txn.Retryable(err):
		return Conflicted
	}
	return Failed
}

// ownAck reports that somebody else has acknowledged the change.
func (r *run) ownAck(c *txn.ConflictError) bool {
	col, observer, ok := format.ObserverOf(c.Cell.Column())
	return ok && observer == r.handler.id && col == r.cell.Column() && c.Cell.Row == r.cell.Row &&
		c.Cell.Table == r.cell.Table && (c.Reason == txn.ConflictWrite || c.Reason == txn.ConflictLock)
}

// settle does what the outcome asks for. retry: look again at once.
func (r *run) settle(ctx, runs context.Context, attempt int) (_ look, retry bool) {
	w, id := r.worker, r.handler.id
	if r.span != nil {
		runs = trace.ContextWithSpan(runs, r.span)
	}
	if r.outcome == Unknown {
		r.findOut(runs)
	}
	l := look{observer: id, seen: r.seen}
	switch r.outcome {
	case Committed, Acknowledged:
		l.done = true
		l.elsewhere = r.outcome == Acknowledged
	case LostRace:
		r.tell()
		return look{}, true
	case Conflicted:
		if attempt < w.cfg.ConflictAttempts {
			r.tell()
			return look{}, true
		}
		l.again = r.conflicts(runs, attempt)
	case Waiting:
		l.again, l.done = r.waiting()
	case Snoozed:
		var put *snooze
		errors.As(r.err, &put)
		l.again = r.fail(runs, 0, put.d, "")
	case Dropped:
		l.done, l.again = r.drop(runs)
	case Parked:
		l.done, l.again = r.park(runs, 0, r.cycle(runs))
		l.failed = l.done
	case Failed:
		l.done, l.again = r.failed(ctx, runs)
		l.failed = l.done
	case Unknown:
		l.again, l.settled = r.unknown(ctx)
	}
	r.tell()
	return l, false
}

// unknown is for a run that could not begin, or whose commit is undetermined.
func (r *run) unknown(ctx context.Context) (again, settled time.Duration) {
	if errors.Is(r.err, txn.ErrClosed) {
		r.worker.closed(r.err)
		return 0, 0
	}
	if errors.Is(r.err, txn.ErrCorrupt) || errors.Is(r.err, txn.ErrFormatVersion) {
		// Nothing that passes by itself.
		again = jitter(r.worker.cfg.Backoff.Max)
		settled = again
	} else {
		again = jitter(time.Second)
	}
	r.worker.cfg.Logger.WarnContext(ctx, "looking at a notified cell failed; it is looked at again", "observer", r.handler.id, "cell", r.cell, "after", again, "error", r.err)
	return again, settled
}

func (r *run) tell() {
	e := Event{Outcome: r.outcome, Observer: r.handler.id, Cell: r.cell, CommitTS: r.commitTS, Duration: time.Since(r.began), Err: r.err}
	if o := r.seen; o != nil {
		e.ChangeTS, e.StartTS = o.ChangeTS, o.StartTS
		for _, t := range o.Triggers {
			if t.TS > o.Acks[e.Observer] && t.TS < o.ChangeTS {
				e.Collapsed++
			}
		}
	}
	var triggers []format.Trigger
	if r.seen != nil {
		triggers = r.seen.Triggers
	}
	r.worker.telemetry.measure(e, triggers)
	r.end(r.span)
	r.worker.event(e)
}

// findOut settles a commit whose outcome is not known. What is not found out is
// left: the cell is looked at again.
func (r *run) findOut(ctx context.Context) {
	var u *txn.UndeterminedError
	if !errors.As(r.err, &u) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	switch s, err := r.worker.client.Settle(ctx, u); {
	case err != nil:
		r.worker.cfg.Logger.WarnContext(ctx, "the commit of an observer's run is undetermined", "observer", r.handler.id, "cell", r.cell, "error", err)
	case s.State == txn.StateCommitted:
		r.outcome, r.commitTS, r.err = Committed, s.CommitTS, nil
	default:
		r.outcome = Conflicted
	}
}

// waiting says when a change whose pause is not over is to be tried again; a
// parked one never is.
func (r *run) waiting() (again time.Duration, done bool) {
	f := r.seen.Failures[r.handler.id]
	if f.NotBefore == forever {
		return 0, true
	}
	return time.Duration(f.NotBefore-r.seen.StartTS) * time.Microsecond, false
}

// failed stores a failed run, or parks its change after the last attempt.
func (r *run) failed(ctx, runs context.Context) (done bool, again time.Duration) {
	if runs.Err() != nil || (ctx.Err() != nil && errors.Is(r.err, context.Canceled)) {
		r.outcome = Cancelled // through no fault of its own
		return false, 0
	}
	w, h := r.worker, r.handler
	attempts := r.earlier().Attempts + 1
	var p *PanicError
	stack := ""
	if errors.As(r.err, &p) {
		stack = string(p.Stack)
	}
	w.cfg.Logger.WarnContext(runs, "observer failed", "observer", h.id, "cell", r.cell, "attempt", attempts, "error", r.err, "stack", stack)
	if attempts >= h.maxAttempts {
		return r.park(runs, attempts, r.err.Error())
	}
	pause := w.cfg.Backoff.Max
	if shift := attempts - 1; shift < 40 && w.cfg.Backoff.Min<<shift < pause {
		pause = w.cfg.Backoff.Min << shift
	}
	return false, r.fail(runs, attempts, pause/2+rand.N(pause/2+1), r.err.Error())
}

// earlier is what became of earlier runs for the same change.
func (r *run) earlier() format.Failure {
	if f, ok := r.seen.Failures[r.handler.id]; ok && f.ChangeTS == r.seen.ChangeTS {
		return f
	}
	return format.Failure{ChangeTS: r.seen.ChangeTS, FirstTS: r.seen.StartTS}
}

// fail stores that the change is not to be tried again before pause is over.
// attempts 0 keeps their number.
func (r *run) fail(ctx context.Context, attempts int, pause time.Duration, text string) (again time.Duration) {
	pause = max(pause, time.Millisecond)
	f := r.earlier()
	if attempts > 0 {
		f.Attempts = attempts
	}
	f.LastTS = r.seen.StartTS
	f.NotBefore = r.now() + tso.Timestamp(pause.Microseconds())
	f.Error = text
	if err := changes.SetFailure(ctx, r.worker.client, r.cell, r.handler.id, f); err != nil {
		r.worker.cfg.Logger.WarnContext(ctx, "storing an observer's failure failed; other workers may run it before its pause is over", "observer", r.handler.id, "cell", r.cell, "error", err)
	}
	return pause
}

// now is the oracle's time, estimated.
func (r *run) now() tso.Timestamp {
	return r.seen.StartTS + tso.Timestamp(time.Since(r.began).Microseconds())
}

// conflicts puts a change off whose run conflicts again and again.
func (r *run) conflicts(ctx context.Context, attempt int) (again time.Duration) {
	text := fmt.Sprintf("%d runs in a row conflicted with other transactions, the last one: %v. If that goes on, split the observer in two with a weak notification in between (notify.Weak)", attempt, r.err)
	r.worker.cfg.Logger.WarnContext(ctx, "observer conflicts", "observer", r.handler.id, "cell", r.cell, "attempts", attempt, "error", r.err, "advice", "split the observer in two with a weak notification in between")
	return r.fail(ctx, 0, jitter(2*r.worker.cfg.Backoff.Min), text)
}

// drop acknowledges what a run has seen without its writes.
func (r *run) drop(ctx context.Context) (done bool, again time.Duration) {
	o, id := r.seen, r.handler.id
	ctx, cancel := context.WithTimeout(ctx, r.handler.timeout)
	defer cancel()
	_, err := r.worker.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		now, err := changes.Observe(ctx, tx, r.cell)
		if err != nil || now.Acks[id] >= o.StartTS {
			return err
		}
		changes.Acknowledge(tx, o, id)
		return nil
	}, txn.Named(id))
	if err != nil {
		r.err = fmt.Errorf("acknowledging a dropped change: %w", err)
		r.worker.cfg.Logger.WarnContext(ctx, "acknowledging a dropped change failed; it is tried again", "observer", id, "cell", r.cell, "error", err)
		return false, jitter(time.Second)
	}
	return true, 0
}

// park makes a dead letter of the change. The notification stays until
// it is written.
func (r *run) park(ctx context.Context, attempts int, text string) (done bool, again time.Duration) {
	w, o := r.worker, r.seen
	f := r.earlier()
	if attempts == 0 {
		attempts = f.Attempts
	}
	d := changes.DeadLetter{Cell: r.cell, Observer: r.handler.id, ChangeTS: o.ChangeTS, Attempts: attempts, FirstTS: f.FirstTS, Error: text}
	if n := len(o.Triggers); n > 0 {
		d.TraceParent = o.Triggers[n-1].TraceParent
	}
	err := changes.Park(ctx, w.client, d)
	if err == nil && len(o.Observers) > 1 {
		// The notification may have to stay for the other observers.
		f.NotBefore, f.Attempts, f.Error, f.LastTS = forever, attempts, text, o.StartTS
		err = changes.SetFailure(ctx, w.client, r.cell, r.handler.id, f)
	}
	if err != nil {
		w.cfg.Logger.WarnContext(ctx, "storing a dead letter failed; it is tried again", "observer", r.handler.id, "cell", r.cell, "error", err)
		return false, jitter(w.cfg.Backoff.Min)
	}
	r.outcome = Parked
	r.err = errors.New(text)
	w.cfg.Logger.ErrorContext(ctx, "change given up; see percctl notify list --dead", "observer", r.handler.id, "cell", r.cell, "attempts", attempts, "error", text)
	return true, 0
}

// cycle describes how runs of observers led here, the way back of the last few.
func (r *run) cycle(ctx context.Context) string {
	const shown = 8
	var text strings.Builder
	fmt.Fprintf(&text, "%d runs of observers caused each other, more than Config.MaxHops (%d): %s of %s", r.hops(), r.worker.cfg.MaxHops, r.handler.id, r.cell)
	hops, err := changes.Trail(ctx, r.worker.client, r.seen, shown)
	for _, h := range hops {
		fmt.Fprintf(&text, ", caused by %s of %s (committed at %d)", h.Observer, h.Cell, h.CommitTS)
	}
	if err != nil {
		fmt.Fprintf(&text, ", and further back could not be read: %v", err)
	}
	return text.String()
}

// jitter is between a half of d and all of it.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
