package notify

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// never is the NotBefore of a change that is a dead letter.
const never = format.Never

// settleTimeout bounds the search for the outcome of a commit. The cell is checked again
// in any case, so a longer search gains nothing.
const settleTimeout = 10 * time.Second

// A run is one transaction of an observer.
type run struct {
	worker  *Worker
	handler *handler
	cell    txn.Cell
	began   time.Time

	startTS  tso.Timestamp // of its transaction
	seen     *changes.Observation
	commitTS tso.Timestamp
	outcome  Outcome
	err      error
	span     trace.Span // report ends it
}

// do reads the cell's changes and, if one is pending, runs the observer and commits.
// After an error the transaction is rolled back, or its outcome is unknown.
func (r *run) do(ctx context.Context) {
	h := r.handler
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	ctx, r.span = r.worker.telemetry.begin(ctx, h, r.began)
	tx, err := r.worker.client.Begin(ctx, append([]txn.TxnOption{txn.Named(h.id)}, h.txnOptions...)...)
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
	link(r.span, r.seen)
	if r.outcome = r.need(); r.outcome != "" {
		return
	}
	// First, so that the acknowledgment is the primary: the observer's write records
	// then lead to the change that it ran for.
	changes.Acknowledge(tx, r.seen, h.id)
	r.worker.counters.runs.Add(1)
	if err = r.call(context.WithValue(ctx, triggerKey{}, r), tx); err == nil {
		r.commitTS, err = tx.Commit(ctx)
	}
	r.outcome, r.err = r.classify(err), err
}

// need returns why the observer need not run, or "" if it has to.
func (r *run) need() Outcome {
	id, o := r.handler.id, r.seen
	// A change keeps its notify cell until every observer has acknowledged it. Without
	// one, the observer acknowledged the change, or it is a dead letter.
	if !slices.Contains(o.Observers, id) || !o.Pending(id) || len(o.Triggers) == 0 {
		return Acknowledged
	}
	if f, _ := o.Failure(id); f.NotBefore > o.StartTS {
		return Waiting
	}
	if most := r.worker.cfg.MaxHops; most >= 0 && r.hops() > most {
		return Parked
	}
	return ""
}

// hops returns how many runs of observers, each caused by the one before, led here.
func (r *run) hops() int {
	most := 0
	for _, t := range r.seen.Triggers {
		most = max(most, t.Hops)
	}
	return most
}

// call calls the observer. A panic becomes its error.
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
		// The error belongs to another transaction, which the observer made.
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

// ownAck reports whether the run conflicted on its acknowledgment: another run has
// acknowledged the change.
func (r *run) ownAck(c *txn.ConflictError) bool {
	col, observer, _ := format.ObserverOf(c.Cell.Column())
	return observer == r.handler.id && col == r.cell.Column() && c.Cell.Row == r.cell.Row &&
		c.Cell.Table == r.cell.Table && (c.Reason == format.ConflictWrite || c.Reason == format.ConflictLock)
}

// conclude does what the outcome asks for: it stores failures and dead letters, and
// acknowledges dropped changes. retry: start the next run at once.
func (r *run) conclude(ctx, runs context.Context, attempt int) (_ result, retry bool) {
	w, id := r.worker, r.handler.id
	if r.span != nil {
		runs = trace.ContextWithSpan(runs, r.span)
	}
	if r.outcome == Unknown {
		r.settle(runs)
	}
	res := result{observer: id, seen: r.seen}
	switch r.outcome {
	case Committed, Acknowledged:
		res.upToDate = true
		res.elsewhere = r.outcome == Acknowledged
	case LostRace:
		r.report()
		return result{}, true
	case Conflicted:
		if attempt < w.cfg.ConflictAttempts {
			r.report()
			return result{}, true
		}
		res.again = r.conflicts(runs, attempt)
	case Waiting:
		res.again, res.upToDate = r.waiting()
	case Snoozed:
		var put *snooze
		errors.As(r.err, &put)
		res.again = r.fail(runs, r.earlier().Attempts, put.d, "")
	case Dropped:
		res.upToDate, res.again = r.drop(runs)
	case Parked:
		r.err = r.cycle(runs)
		res.upToDate, res.again = r.park(runs, r.earlier().Attempts)
		res.failed = res.upToDate
	case Failed:
		res.upToDate, res.again = r.failed(ctx, runs)
		res.failed = res.upToDate
	case Unknown:
		res.again, res.skip = r.unknown(ctx)
	}
	r.report()
	return res, false
}

// unknown handles a run that could not begin, or whose commit has an unknown outcome.
func (r *run) unknown(ctx context.Context) (again, skip time.Duration) {
	if errors.Is(r.err, txn.ErrClosed) {
		r.worker.clientClosed(r.err)
		return 0, 0
	}
	if errors.Is(r.err, txn.ErrCorrupt) || errors.Is(r.err, txn.ErrFormatVersion) {
		// An operator has to repair it.
		again = pause.Jitter(r.worker.cfg.Backoff.Max)
		skip = again
	} else {
		again = pause.Jitter(time.Second)
	}
	r.worker.log.WarnContext(ctx, "checking a notified cell failed; the worker checks it again", "observer", r.handler.id, "cell", r.cell, "after", again, "error", r.err)
	return again, skip
}

// report ends the run's span, and reports the run to metrics, Stats and Config.OnEvent.
func (r *run) report() {
	e := Event{Outcome: r.outcome, Observer: r.handler.id, Cell: r.cell, CommitTS: r.commitTS, Duration: time.Since(r.began), Err: r.err}
	var triggers []format.NotifyCell
	if o := r.seen; o != nil {
		triggers = o.Triggers
		e.ChangeTS, e.StartTS = o.ChangeTS, o.StartTS
		for _, t := range o.Triggers {
			if t.TS > o.Acks[e.Observer] && t.TS < o.ChangeTS {
				e.Collapsed++
			}
		}
	}
	r.worker.telemetry.measure(e, triggers)
	r.endSpan()
	r.worker.report(e)
}

func (r *run) endSpan() {
	if r.span == nil {
		return
	}
	r.span.SetAttributes(attrOutcome.String(string(r.outcome)))
	switch r.outcome {
	case Failed, Unknown, Parked:
		// Not the error's text: it comes from the application and may contain data.
		r.span.SetStatus(codes.Error, string(r.outcome))
		r.span.SetAttributes(semconv.ErrorTypeKey.String(instrument.ErrorType(r.err)))
	}
	r.span.End()
}

// settle settles a commit with an unknown outcome. If it fails, the outcome stays
// unknown, and the cell is checked again.
func (r *run) settle(ctx context.Context) {
	var u *txn.UndeterminedError
	if !errors.As(r.err, &u) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	switch s, err := r.worker.client.Settle(ctx, u); {
	case err != nil:
		r.worker.log.WarnContext(ctx, "settling the commit of an observer failed; its outcome is unknown", "observer", r.handler.id, "cell", r.cell, "error", err)
	case s.State == txn.StateCommitted:
		r.outcome, r.commitTS, r.err = Committed, s.CommitTS, nil
	default:
		r.outcome = Conflicted
	}
}

// waiting returns when the pause of a failed change ends. A dead letter has no next run:
// the observer is up to date.
func (r *run) waiting() (again time.Duration, upToDate bool) {
	f := r.seen.Failures[r.handler.id]
	if f.NotBefore == never {
		return 0, true
	}
	return f.NotBefore.Sub(r.seen.StartTS), false
}

// failed stores the failure of the run. After the last attempt it parks the change.
func (r *run) failed(ctx, runs context.Context) (upToDate bool, again time.Duration) {
	if runs.Err() != nil || (ctx.Err() != nil && errors.Is(r.err, context.Canceled)) {
		r.outcome = Cancelled // the worker stops: this is not the observer's failure
		return false, 0
	}
	w, h := r.worker, r.handler
	attempts := r.earlier().Attempts + 1
	var p *PanicError
	stack := ""
	if errors.As(r.err, &p) {
		stack = string(p.Stack)
	}
	w.log.WarnContext(runs, "observer failed", "observer", h.id, "cell", r.cell, "attempt", attempts, "error", r.err, "stack", stack)
	if attempts >= h.maxAttempts {
		return r.park(runs, attempts)
	}
	return false, r.fail(runs, attempts, pause.Jitter(pauseAfter(attempts, w.cfg.Backoff)), r.err.Error())
}

// pauseAfter is the pause after so many failed attempts. It doubles each time.
func pauseAfter(attempts int, b txn.Backoff) time.Duration {
	d := b.Min
	for n := 1; n < attempts && d < b.Max; n++ {
		d *= 2
	}
	return min(d, b.Max)
}

// earlier returns what earlier runs stored about failures on the same change.
func (r *run) earlier() format.Failure {
	if f, ok := r.seen.Failure(r.handler.id); ok {
		return f
	}
	return format.Failure{ChangeTS: r.seen.ChangeTS, FirstTS: r.seen.StartTS}
}

// fail stores that the next run must not start before d has passed.
func (r *run) fail(ctx context.Context, attempts int, d time.Duration, text string) (again time.Duration) {
	d = max(d, time.Millisecond)
	f := r.earlier()
	f.Attempts = attempts
	f.LastTS = r.seen.StartTS
	f.NotBefore = r.now().Add(d)
	f.Error = text
	if err := changes.SetFailure(ctx, r.worker.client, r.cell, r.handler.id, f); err != nil {
		r.worker.log.WarnContext(ctx, "storing the failure of an observer failed; other workers may retry too early", "observer", r.handler.id, "cell", r.cell, "error", err)
	}
	return d
}

// now estimates the oracle's time.
func (r *run) now() tso.Timestamp {
	return r.seen.StartTS.Add(time.Since(r.began))
}

// conflicts delays a change after Config.ConflictAttempts conflicts in a row.
func (r *run) conflicts(ctx context.Context, attempt int) (again time.Duration) {
	text := fmt.Sprintf("%d runs in a row conflicted with other transactions, the last one: %v. If this continues, split the observer in two with a weak notification in between (notify.Weak)", attempt, r.err)
	r.worker.log.WarnContext(ctx, "observer conflicts", "observer", r.handler.id, "cell", r.cell, "attempts", attempt, "error", r.err, "advice", "split the observer in two with a weak notification in between")
	return r.fail(ctx, r.earlier().Attempts, pause.Jitter(2*r.worker.cfg.Backoff.Min), text)
}

// drop acknowledges what the run has seen, without its writes.
func (r *run) drop(ctx context.Context) (upToDate bool, again time.Duration) {
	o, id := r.seen, r.handler.id
	ctx, cancel := context.WithTimeout(ctx, r.handler.timeout)
	defer cancel()
	_, err := r.worker.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		now, err := changes.Observe(ctx, tx, r.cell)
		// Of an observer that is not registered any more, nothing shows what it has
		// acknowledged.
		if err != nil || !slices.Contains(now.Observers, id) || now.Acks[id] >= o.StartTS {
			return err
		}
		changes.Acknowledge(tx, o, id)
		return nil
	}, txn.Named(id))
	if err != nil {
		r.err = fmt.Errorf("acknowledging a dropped change: %w", err)
		r.worker.log.WarnContext(ctx, "acknowledging a dropped change failed; the worker retries", "observer", id, "cell", r.cell, "error", err)
		return false, pause.Jitter(time.Second)
	}
	return true, 0
}

// park makes the change a dead letter, because of r.err. Its notification stays until the
// dead letter is stored.
func (r *run) park(ctx context.Context, attempts int) (upToDate bool, again time.Duration) {
	w, o, text := r.worker, r.seen, r.err.Error()
	f := r.earlier()
	d := changes.DeadLetter{Cell: r.cell, Observer: r.handler.id, ChangeTS: o.ChangeTS, Attempts: attempts, FirstTS: f.FirstTS, Error: text, TraceParent: o.Triggers[len(o.Triggers)-1].TraceParent}
	err := changes.Park(ctx, w.client, d)
	if err == nil && len(o.Observers) > 1 {
		// The notification may have to stay for the other observers.
		f.NotBefore, f.Attempts, f.Error, f.LastTS = never, attempts, text, o.StartTS
		err = changes.SetFailure(ctx, w.client, r.cell, r.handler.id, f)
	}
	if err != nil {
		w.log.WarnContext(ctx, "storing a dead letter failed; the worker retries", "observer", r.handler.id, "cell", r.cell, "error", err)
		return false, pause.Jitter(w.cfg.Backoff.Min)
	}
	r.outcome = Parked
	w.log.ErrorContext(ctx, "a change became a dead letter; see percctl notify list --dead", "observer", r.handler.id, "cell", r.cell, "attempts", attempts, "error", text)
	return true, 0
}

// cycle describes which runs of observers led here, the last few of them.
func (r *run) cycle(ctx context.Context) error {
	const shown = 8
	var text strings.Builder
	fmt.Fprintf(&text, "%d runs of observers caused each other, more than Config.MaxHops (%d): %s of %s", r.hops(), r.worker.cfg.MaxHops, r.handler.id, r.cell)
	ctx, cancel := context.WithTimeout(ctx, r.handler.timeout)
	defer cancel()
	hops, err := changes.Trail(ctx, r.worker.client, r.seen, shown)
	for _, h := range hops {
		fmt.Fprintf(&text, ", caused by %s of %s (committed at %d)", h.Observer, h.Cell, h.CommitTS)
	}
	if err != nil {
		fmt.Fprintf(&text, "; reading the runs before that failed: %v", err)
	}
	return errors.New(text.String())
}
