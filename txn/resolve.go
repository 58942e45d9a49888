package txn

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// This file settles locks that others left (paper §2.2, design §4 "Resolve a
// lock"). Every step is a conditional mutation on the lock at its exact
// timestamp, so two resolvers at once, a resolver that dies half-way and one
// that wakes up late do no harm.

// patience says what to do about a lock whose owner is alive.
type patience func(*Lock, outcome) bool

func waitNever(*Lock, outcome) bool { return false }

// An outcome is a Status and what this client knows besides.
type outcome struct {
	Status
	// primaryCleared: this client has replaced the primary lock by a marker.
	primaryCleared bool
	// lockGone: nothing tells the transaction's outcome, but the lock that was met
	// is not there any more: its owner has aborted.
	lockGone bool
	// changed: what was read is out of date.
	changed bool
}

// undecided: the transaction's owner may be alive.
func (o outcome) undecided() bool { return !o.changed && !o.Final() }

// resolveForRead clears a lock that a read at ts met, waiting while its owner
// is alive. walkPast reports that the transaction committed after ts: its lock
// is no obstacle, and is cleaned up behind.
func (r *resolver) resolveForRead(ctx context.Context, l *Lock, ts tso.Timestamp) (walkPast bool, err error) {
	ctx, span := r.trace.resolve(ctx, l)
	began := time.Now()
	passed := false
	s, err := r.decide(ctx, l, ts, true, func(_ *Lock, s outcome) bool {
		passed = pass(ctx, r, s.Lock, ts)
		return !passed
	})
	r.metrics.waited(ctx, l.Cell.Table, began)
	defer func() {
		action := resolution(s, ts)
		if passed {
			action = "walked past"
		}
		span.set(attrAction.String(action))
		span.end(err)
	}()
	if passed {
		return true, nil
	}
	if err != nil || s.lockGone {
		return false, err
	}
	if s.State == StateCommitted && s.CommitTS > ts {
		r.background.run(func(ctx context.Context) {
			if err := r.finish(ctx, l, s); err != nil {
				r.log.DebugContext(ctx, "rolling forward behind a read failed", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
		return true, nil
	}
	return false, r.finish(ctx, l, s)
}

// resolveForWrite clears a lock that the prewrite of the transaction that
// started at ts met. To wait while holding locks could deadlock, so only the
// older transaction waits, and the younger one fails at once (wait-die); clear
// is false then. unlatch is called before it waits.
func (r *resolver) resolveForWrite(ctx context.Context, l *Lock, ts tso.Timestamp, unlatch func()) (clear bool, err error) {
	ctx, span := r.trace.resolve(ctx, l)
	began := time.Now()
	s, err := r.decide(ctx, l, ts, true, func(l *Lock, _ outcome) bool {
		if ts < l.StartTS {
			unlatch()
			return true
		}
		return false
	})
	r.metrics.waited(ctx, l.Cell.Table, began)
	defer func() {
		span.set(attrAction.String(resolution(s, 0)))
		span.end(err)
	}()
	switch {
	case err != nil:
		return false, err
	case s.lockGone:
		return true, nil
	case !s.Final():
		return false, nil
	}
	return true, r.finish(ctx, l, s)
}

// resolveLock resolves one lock, as its transaction's primary decides, and waits for nobody.
func (r *resolver) resolveLock(ctx context.Context, l Lock) (s Status, err error) {
	if err := checkCell(l.Cell); err != nil {
		return Status{}, err
	}
	if err := checkCell(l.Primary); err != nil {
		return Status{}, err
	}
	if err := r.enter(); err != nil {
		return Status{}, err
	}
	defer r.leave()
	ctx, span := r.trace.settle(ctx, &l)
	defer func() {
		span.set(attrAction.String(resolution(outcome{Status: s}, 0)))
		span.end(err)
	}()
	now, err := r.clock.timestamp(ctx)
	if err != nil {
		return Status{}, err
	}
	// The lock may have been listed long ago, and be kept alive since.
	o, err := r.decide(ctx, &l, now, false, waitNever)
	if err != nil || !o.Final() {
		return o.Status, err
	}
	return o.Status, r.finish(ctx, &l, o)
}

// decide finds the fate of the transaction that wrote l, and makes one if that
// transaction is dead: its primary is rolled back first, before anything of it
// is cleaned up. asOf is any timestamp that the oracle handed out before l was
// read (justRead) or before the call; age is judged by oracle time alone, so
// the caller's own timestamp saves a question to the oracle when the lock is
// old. The result is final, unless wait refused to wait for a live owner, or
// the lock went away.
func (r *resolver) decide(ctx context.Context, l *Lock, asOf tso.Timestamp, justRead bool, wait patience) (outcome, error) {
	if s, ok := r.known.get(l.StartTS); ok {
		return outcome{Status: s}, nil
	}
	t, err := r.table(ctx, l.Primary.Table)
	if err != nil {
		return outcome{}, err
	}
	r.counters.locksMet.Add(1)
	var last error
	for pause := r.store.cfg.Backoff.start(); ; justRead = false {
		// A primary lock that was just read speaks for its transaction.
		s := outcome{Status: Status{State: StateLocked, Lock: l}}
		if !justRead || !l.IsPrimary() {
			s.Status, err = readStatus(ctx, t, l.Primary, l.StartTS)
		}
		expires := l.ExpiresTS()
		if err == nil && !s.Final() {
			s, expires, err = r.judge(ctx, t, l, s, asOf, justRead)
			if err == nil && (s.lockGone || (s.undecided() && !wait(l, s))) {
				return s, nil
			}
		}
		switch {
		case err == nil && s.Final():
			r.known.put(l.StartTS, s.Status)
			return s, nil
		case permanent(err), errors.Is(err, ErrFormatVersion), errors.Is(err, ErrCorrupt):
			return outcome{}, err // reading it again says the same
		case err != nil:
			last = err
		}
		atMost := remaining(asOf, expires)
		if atMost > 0 {
			atMost += time.Millisecond
		}
		if pause.wait(ctx, atMost) != nil {
			return outcome{}, ended(ctx, "waiting for the lock on "+l.Cell.String(), last)
		}
		// Before the primary is read again, for marker-if-nothing-there.
		if asOf, err = r.clock.timestamp(ctx); err != nil {
			return outcome{}, err
		}
	}
}

// judge rolls a transaction back whose fate is open if it is dead. The
// primary's ttl decides; only where there is no primary lock does that of the
// lock that was met (hazards 2 and 7). expires is when to look again at the
// latest; stateChanged says to look again soon.
func (r *resolver) judge(ctx context.Context, t *table, l *Lock, s outcome, asOf tso.Timestamp, justRead bool) (_ outcome, expires tso.Timestamp, err error) {
	judged := l
	if s.State == StateLocked {
		judged = s.Lock
	} else if forgotten, err := r.safePoint.forgotten(ctx, l.StartTS); err != nil {
		return s, l.ExpiresTS(), err
	} else if !justRead || forgotten {
		// Below the safe point the primary may be empty because it was collected
		// since the lock was read, and the lock was resolved before that. An owner that aborts leaves no trace at its primary; it leaves no lock
		// either, and then there is nothing to wait for or to roll back.
		gone, err := r.isGone(ctx, l)
		if gone || err != nil {
			return outcome{lockGone: gone}, l.ExpiresTS(), err
		}
	}
	if !r.dead(ctx, judged, asOf) {
		return s, judged.ExpiresTS(), nil
	}
	r.metrics.stranded(judged, asOf)
	rolledBack, err := rollBackPrimary(ctx, t, l.Primary, l.StartTS, s.State, asOf)
	if rolledBack.Final() && s.Lock != nil {
		r.resolved(s.Lock, rolledBack)
	}
	return rolledBack, judged.ExpiresTS(), err
}

// isGone reports that a lock is not there any more.
func (r *resolver) isGone(ctx context.Context, l *Lock) (bool, error) {
	t, err := r.table(ctx, l.Cell.Table)
	if err != nil {
		return false, err
	}
	raw, err := t.readRow(ctx, l.Cell.Row, interleave(lockAt(l.Cell.Column(), l.StartTS)))
	return err == nil && len(raw[LockFamily]) == 0, err
}

// dead reports whether a lock may be rolled back at oracle time now: its ttl
// is over, or its owner's token went stale.
func (r *resolver) dead(ctx context.Context, l *Lock, now tso.Timestamp) bool {
	return now >= l.ExpiresTS() || r.token.stale(ctx, l.Owner, now)
}

// rollBackPrimary makes sure that the transaction never commits: it replaces
// the primary lock, or the nothing that is there, with a rollback marker that
// a late prewrite runs into (hazards 1 and 2). The result is stateChanged when
// something else was there.
func rollBackPrimary(ctx context.Context, t *table, primary Cell, startTS tso.Timestamp, found State, asOf tso.Timestamp) (outcome, error) {
	col := primary.Column()
	mark := bigtable.NewMutation()
	mark.Set(MarkFamily, col.key(), startTS.Cell(), encodeRollback(startTS))
	var done bool
	var err error
	if found == StateLocked {
		removeLockAndData(mark, col, startTS)
		done, err = t.checkAndMutate(ctx, primary.Row, lockAt(col, startTS), mark, nil)
	} else {
		var matched bool
		matched, err = t.checkAndMutate(ctx, primary.Row, undecided(col, startTS, asOf), nil, mark)
		done = !matched
	}
	if err != nil || !done {
		return outcome{changed: true}, err
	}
	return outcome{Status: Status{State: StateRolledBack}, primaryCleared: true}, nil
}

// finish rolls the lock's own cell forward or back, as its transaction's final
// status says. It returns once the cell is known to be clean.
func (r *resolver) finish(ctx context.Context, l *Lock, s outcome) error {
	if l.IsPrimary() && s.primaryCleared {
		return nil
	}
	t, err := r.table(ctx, l.Cell.Table)
	if err != nil {
		return err
	}
	m := bigtable.NewMutation()
	if s.State == StateCommitted {
		addCommit(m, l, s.CommitTS)
	} else {
		removeLockAndData(m, l.Cell.Column(), l.StartTS)
	}
	for pause := r.store.cfg.Backoff.start(); ; {
		did, err := t.checkAndMutate(ctx, l.Cell.Row, lockAt(l.Cell.Column(), l.StartTS), m, nil)
		switch {
		case err == nil && did:
			r.resolved(l, s)
			return nil
		case err == nil, permanent(err):
			return err
		}
		// Whether it was applied or not, sending it again is harmless.
		if pause.wait(ctx, 0) != nil {
			return ended(ctx, "clearing the lock on "+l.Cell.String(), err)
		}
	}
}

// resolution is the low-cardinality name of what became of a lock that was met
// by a read at ts; 0: by anybody else.
func resolution(s outcome, ts tso.Timestamp) string {
	switch {
	case s.lockGone:
		return "gone"
	case s.State == StateCommitted && ts > 0 && s.CommitTS > ts:
		return "walked past"
	case s.State == StateCommitted:
		return "rolled forward"
	case s.State == StateRolledBack:
		return "rolled back"
	}
	return "left"
}

func (r *resolver) resolved(l *Lock, s outcome) {
	r.metrics.resolved(l, resolution(s, 0))
	if s.State == StateCommitted {
		r.counters.rolledForward.Add(1)
		if l.Observed {
			r.hints.hint(l.Cell)
		}
	} else {
		r.counters.rolledBack.Add(1)
	}
	if f := r.onResolve.Load(); f != nil {
		(*f)(Resolution{*l, s.Status})
	}
}
