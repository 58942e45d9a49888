package recovery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// This file settles locks that others left (paper §2.2, design §4 "Resolve a
// lock"). Every step is a conditional mutation on the lock at its exact
// timestamp, so two resolvers at once, a resolver that dies half-way and one
// that wakes up late do no harm.

// waitPolicy says what to do about a lock whose owner is alive.
type waitPolicy func(*format.Lock, Outcome) bool

func WaitNever(*format.Lock, Outcome) bool { return false }

// An outcome is a Status and what this client knows besides.
type Outcome struct {
	format.Status
	// primaryCleared: this client has replaced the primary lock by a marker.
	primaryCleared bool
	// LockGone: nothing tells the transaction's outcome, but the lock that was met
	// is not there any more: its owner has aborted.
	LockGone bool
	// changed: what was read is out of date.
	changed bool
}

// undecided: the transaction's owner may be alive.
func (o Outcome) undecided() bool { return !o.changed && !o.Final() }

// resolveOneForRead clears a lock that a read at ts met, waiting while its owner
// is alive. walkPast reports that the transaction committed after ts: its lock
// is no obstacle, and is cleaned up behind.
func (r *Resolver) resolveOneForRead(ctx context.Context, l *format.Lock, ts tso.Timestamp) (walkPast bool, err error) {
	ctx, span := r.Trace.Resolve(ctx, l)
	began := time.Now()
	passed := false
	s, err := r.FindOutcome(ctx, l, ts, true, func(_ *format.Lock, s Outcome) bool {
		passed = passLock(ctx, r, s.Lock, ts)
		return !passed
	})
	r.Metrics.LockWait(ctx, l.Cell.Table, began)
	defer func() {
		action := ActionName(s, ts)
		if passed {
			action = "walked past"
		}
		span.Set(telemetry.AttrAction.String(action))
		span.EndWith(err)
	}()
	if passed {
		return true, nil
	}
	if err != nil || s.LockGone {
		return false, err
	}
	if s.State == format.StateCommitted && s.CommitTS > ts {
		r.Background.Run(func(ctx context.Context) {
			if err := r.ResolveCell(ctx, l, s); err != nil {
				r.Log.DebugContext(ctx, "rolling forward behind a read failed", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
		return true, nil
	}
	return false, r.ResolveCell(ctx, l, s)
}

// ResolveForWrite clears a lock that the prewrite of the transaction that
// started at ts met. To wait while holding locks could deadlock, so only the
// older transaction waits, and the younger one fails at once (wait-die); clear
// is false then. unlatch is called before it waits.
func (r *Resolver) ResolveForWrite(ctx context.Context, l *format.Lock, ts tso.Timestamp, unlatch func()) (clear bool, err error) {
	ctx, span := r.Trace.Resolve(ctx, l)
	began := time.Now()
	s, err := r.FindOutcome(ctx, l, ts, true, func(l *format.Lock, _ Outcome) bool {
		if ts < l.StartTS {
			unlatch()
			return true
		}
		return false
	})
	r.Metrics.LockWait(ctx, l.Cell.Table, began)
	defer func() {
		span.Set(telemetry.AttrAction.String(ActionName(s, 0)))
		span.EndWith(err)
	}()
	switch {
	case err != nil:
		return false, err
	case s.LockGone:
		return true, nil
	case !s.Final():
		return false, nil
	}
	return true, r.ResolveCell(ctx, l, s)
}

// ResolveLock resolves one lock, as its transaction's primary decides, and waits for nobody.
func (r *Resolver) ResolveLock(ctx context.Context, l format.Lock) (s format.Status, err error) {
	if err := format.CheckCell(l.Cell); err != nil {
		return format.Status{}, err
	}
	if err := format.CheckCell(l.Primary); err != nil {
		return format.Status{}, err
	}
	if err := r.Enter(); err != nil {
		return format.Status{}, err
	}
	defer r.Leave()
	ctx, span := r.Trace.ResolveRequested(ctx, &l)
	defer func() {
		span.Set(telemetry.AttrAction.String(ActionName(Outcome{Status: s}, 0)))
		span.EndWith(err)
	}()
	now, err := r.Clock.Timestamp(ctx)
	if err != nil {
		return format.Status{}, err
	}
	// The lock may have been listed long ago, and be kept alive since.
	o, err := r.FindOutcome(ctx, &l, now, false, WaitNever)
	if err != nil || !o.Final() {
		return o.Status, err
	}
	return o.Status, r.ResolveCell(ctx, &l, o)
}

// FindOutcome finds the fate of the transaction that wrote l, and makes one if that
// transaction is dead: its primary is rolled back first, before anything of it
// is cleaned up. asOf is any timestamp that the oracle handed out before l was
// read (justRead) or before the call; age is judged by oracle time alone, so
// the caller's own timestamp saves a question to the oracle when the lock is
// old. The result is final, unless wait refused to wait for a live owner, or
// the lock went away.
func (r *Resolver) FindOutcome(ctx context.Context, l *format.Lock, asOf tso.Timestamp, justRead bool, wait waitPolicy) (Outcome, error) {
	if s, ok := r.Outcomes.get(l.StartTS); ok {
		return Outcome{Status: s}, nil
	}
	t, err := r.Table(ctx, l.Primary.Table)
	if err != nil {
		return Outcome{}, err
	}
	r.Counters.LocksMet.Add(1)
	var last error
	for pause := r.Store.Config.Backoff.Start(); ; justRead = false {
		// A primary lock that was just read speaks for its transaction.
		s := Outcome{Status: format.Status{State: format.StateLocked, Lock: l}}
		if !justRead || !l.IsPrimary() {
			s.Status, err = ReadStatus(ctx, t, l.Primary, l.StartTS)
		}
		expires := l.ExpiresTS()
		if err == nil && !s.Final() {
			s, expires, err = r.rollBackIfDead(ctx, t, l, s, asOf, justRead)
			if err == nil && (s.LockGone || (s.undecided() && !wait(l, s))) {
				return s, nil
			}
		}
		switch {
		case err == nil && s.Final():
			r.Outcomes.Put(l.StartTS, s.Status)
			return s, nil
		case store.Permanent(err), errors.Is(err, format.ErrFormatVersion), errors.Is(err, format.ErrCorrupt):
			return Outcome{}, err // reading it again says the same
		case err != nil:
			last = err
		}
		atMost := store.Remaining(asOf, expires)
		if atMost > 0 {
			atMost += time.Millisecond
		}
		if pause.Wait(ctx, atMost) != nil {
			return Outcome{}, store.Ended(ctx, "waiting for the lock on "+l.Cell.String(), last)
		}
		// Before the primary is read again, for marker-if-nothing-there.
		if asOf, err = r.Clock.Timestamp(ctx); err != nil {
			return Outcome{}, err
		}
	}
}

// rollBackIfDead rolls a transaction back whose fate is open if it is dead. The
// primary's ttl decides; only where there is no primary lock does that of the
// lock that was met (hazards 2 and 7). expires is when to look again at the
// latest; stateChanged says to look again soon.
func (r *Resolver) rollBackIfDead(ctx context.Context, t *store.Table, l *format.Lock, s Outcome, asOf tso.Timestamp, justRead bool) (_ Outcome, expires tso.Timestamp, err error) {
	judged := l
	if s.State == format.StateLocked {
		judged = s.Lock
	} else if forgotten, err := r.SafePoint.Forgotten(ctx, l.StartTS); err != nil {
		return s, l.ExpiresTS(), err
	} else if !justRead || forgotten {
		// Below the safe point the primary may be empty because it was collected
		// since the lock was read, and the lock was resolved before that. An owner that aborts leaves no trace at its primary; it leaves no lock
		// either, and then there is nothing to wait for or to roll back.
		gone, err := r.lockIsGone(ctx, l)
		if gone || err != nil {
			return Outcome{LockGone: gone}, l.ExpiresTS(), err
		}
	}
	if !r.isDead(ctx, judged, asOf) {
		return s, judged.ExpiresTS(), nil
	}
	r.Metrics.Stranded(judged, asOf)
	rolledBack, err := rollBackPrimary(ctx, t, l.Primary, l.StartTS, s.State, asOf)
	if rolledBack.Final() && s.Lock != nil {
		r.noteResolved(s.Lock, rolledBack)
	}
	return rolledBack, judged.ExpiresTS(), err
}

// lockIsGone reports that a lock is not there any more.
func (r *Resolver) lockIsGone(ctx context.Context, l *format.Lock) (bool, error) {
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return false, err
	}
	raw, err := t.ReadRow(ctx, l.Cell.Row, store.Interleave(store.LockAt(l.Cell.Column(), l.StartTS)))
	return err == nil && len(raw[format.LockFamily]) == 0, err
}

// isDead reports whether a lock may be rolled back at oracle time now: its ttl
// is over, or its owner's token went stale.
func (r *Resolver) isDead(ctx context.Context, l *format.Lock, now tso.Timestamp) bool {
	return now >= l.ExpiresTS() || r.Token.isStale(ctx, l.Owner, now)
}

// rollBackPrimary makes sure that the transaction never commits: it replaces
// the primary lock, or the nothing that is there, with a rollback marker that
// a late prewrite runs into (hazards 1 and 2). The result is stateChanged when
// something else was there.
func rollBackPrimary(ctx context.Context, t *store.Table, primary format.Cell, startTS tso.Timestamp, found format.State, asOf tso.Timestamp) (Outcome, error) {
	col := primary.Column()
	mark := bigtable.NewMutation()
	mark.Set(format.MarkFamily, col.Key(), startTS.Cell(), format.EncodeRollback(startTS))
	var done bool
	var err error
	if found == format.StateLocked {
		store.RemoveLockAndData(mark, col, startTS)
		done, err = t.CheckAndMutate(ctx, primary.Row, store.LockAt(col, startTS), mark, nil)
	} else {
		var matched bool
		matched, err = t.CheckAndMutate(ctx, primary.Row, store.Undecided(col, startTS, asOf), nil, mark)
		done = !matched
	}
	if err != nil || !done {
		return Outcome{changed: true}, err
	}
	return Outcome{Status: format.Status{State: format.StateRolledBack}, primaryCleared: true}, nil
}

// ResolveCell rolls the lock's own cell forward or back, as its transaction's final
// status says. It returns once the cell is known to be clean.
func (r *Resolver) ResolveCell(ctx context.Context, l *format.Lock, s Outcome) error {
	if l.IsPrimary() && s.primaryCleared {
		return nil
	}
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return err
	}
	m := bigtable.NewMutation()
	if s.State == format.StateCommitted {
		store.AddCommit(m, l, s.CommitTS)
	} else {
		store.RemoveLockAndData(m, l.Cell.Column(), l.StartTS)
	}
	for pause := r.Store.Config.Backoff.Start(); ; {
		did, err := t.CheckAndMutate(ctx, l.Cell.Row, store.LockAt(l.Cell.Column(), l.StartTS), m, nil)
		switch {
		case err == nil && did:
			r.noteResolved(l, s)
			return nil
		case err == nil, store.Permanent(err):
			return err
		}
		// Whether it was applied or not, sending it again is harmless.
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "clearing the lock on "+l.Cell.String(), err)
		}
	}
}

// ActionName is the low-cardinality name of what became of a lock that was met
// by a read at ts; 0: by anybody else.
func ActionName(s Outcome, ts tso.Timestamp) string {
	switch {
	case s.LockGone:
		return "gone"
	case s.State == format.StateCommitted && ts > 0 && s.CommitTS > ts:
		return "walked past"
	case s.State == format.StateCommitted:
		return "rolled forward"
	case s.State == format.StateRolledBack:
		return "rolled back"
	}
	return "left"
}

func (r *Resolver) noteResolved(l *format.Lock, s Outcome) {
	r.Metrics.Resolved(l, ActionName(s, 0))
	if s.State == format.StateCommitted {
		r.Counters.RolledForward.Add(1)
		if l.Observed {
			r.Hints.Publish(l.Cell)
		}
	} else {
		r.Counters.RolledBack.Add(1)
	}
	if f := r.OnResolve.Load(); f != nil {
		(*f)(format.Resolution{Lock: *l, Status: s.Status})
	}
}

// A resolver finds out the outcome of other clients' transactions and ends those whose
// clients are dead (paper §2.2).
type Resolver struct {
	*store.Store
	Config Config
	Token  *Token
	Holds  *Holds
	Outcomes  *OutcomeCache
	// OnResolve is called after each cell that was resolved.
	OnResolve atomic.Pointer[func(format.Resolution)]
}

func New(s *store.Store, cfg Config) *Resolver {
	r := &Resolver{Store: s, Config: cfg, Holds: newHolds(), Outcomes: newOutcomeCache()}
	r.Token = newToken(r)
	return r
}

// A resolverConfig configures a resolver; every field is set. Package txn's Config
// describes them and has the defaults.
type Config struct {
	TokenTTL  time.Duration
	PassLocks bool
}
