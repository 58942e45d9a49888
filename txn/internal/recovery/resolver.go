package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/settled"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A Resolver resolves locks of other clients' transactions (paper §2.2, design §4
// "Resolve a lock"): it finds out the outcome of a lock's transaction and rolls the cell
// forward or back. If the owner is dead, the Resolver first ends the transaction at its
// primary.
//
// Each step is a conditional mutation on the lock at its exact timestamp. So no harm is
// done if two clients resolve a lock at once, if one dies half-way, or if one continues
// after a long pause.
type Resolver struct {
	*store.Store
	Config   Config
	Token    *Token
	Holds    *Holds
	Outcomes *OutcomeCache
	Journal  *journal.Journal
	Claims   *settled.Claims
	// OnResolve is called after each cell that the Resolver rolled forward or back.
	OnResolve atomic.Pointer[func(format.Resolution)]
	// DeclaredDead is the start_ts of a transaction whose owner an operator has declared dead. That
	// is as safe as a ttl that is too short (emulator_test/internal/protocol: any client may call any
	// owner dead at any moment): the owner fails to commit, unless it has committed.
	DeclaredDead atomic.Int64
}

// New returns the resolver of a client. It has no worker token if cfg.TokenTTL is not
// positive.
func New(s *store.Store, cfg Config) *Resolver {
	r := &Resolver{Store: s, Config: cfg, Holds: newHolds(), Outcomes: newOutcomeCache(), Journal: journal.New(s)}
	if cfg.TokenTTL > 0 {
		r.Claims = settled.NewClaims()
	}
	r.Token = newToken(r)
	return r
}

// A Config configures a Resolver. Each field is set: package txn's Config describes them
// and has the defaults.
type Config struct {
	TokenTTL  time.Duration
	PassLocks bool
	// OnConflict is called if a read finds that a lock was committed above
	// its timestamp.
	OnConflict func(*format.ConflictError)
}

// A waitPolicy says whether to wait for the live owner of a lock.
type waitPolicy func(*format.Lock, Outcome) bool

// WaitNever is the policy of a caller that does not wait.
func WaitNever(*format.Lock, Outcome) bool { return false }

// An Outcome is the status of a transaction, with what this client knows besides.
type Outcome struct {
	format.Status
	// primaryCleared: this client has replaced the primary lock by a marker, or has read the
	// outcome at the primary and no lock beside it.
	primaryCleared bool
	// LockGone: nothing shows the transaction's outcome, but the lock does not exist any
	// more. Its owner rolled the transaction back, or another client resolved the lock.
	LockGone bool
	// changed: the primary changed after it was read.
	changed bool
}

// undecided reports whether the transaction may still commit.
func (o Outcome) undecided() bool { return !o.changed && !o.Final() }

// resolveOneForRead resolves a lock that a read at ts found. It waits as long as the owner
// is alive, unless the read can pass the lock. ignore reports that the transaction
// committed above ts, or can only commit there: the read does not need its value, and the
// lock may stay.
func (r *Resolver) resolveOneForRead(ctx context.Context, l *format.Lock, ts tso.Timestamp) (ignore bool, err error) {
	ctx, span := r.Trace.Resolve(ctx, l)
	began := time.Now()
	passed := false
	o, err := r.FindOutcome(ctx, l, ts, true, func(_ *format.Lock, o Outcome) bool {
		passed = passLock(ctx, r, o.Lock, ts)
		return !passed
	})
	r.Metrics.LockWait(ctx, l.Cell.Table, began)
	defer func() {
		action := ActionName(o, ts)
		if passed {
			action = "walked past"
		}
		span.Set(telemetry.AttrAction.String(action))
		span.EndWith(err)
	}()
	if passed {
		return true, nil
	}
	if err != nil || o.LockGone {
		return false, err
	}
	if o.State == format.StateCommitted && o.CommitTS > ts {
		r.Config.OnConflict(&format.ConflictError{Cell: l.Cell, StartTS: ts, ConflictTS: o.CommitTS, Reason: format.ConflictWrite})
		if l.IsPrimary() && o.primaryCleared {
			return true, nil
		}
		r.Background.Run(func(ctx context.Context) {
			if err := r.ResolveCell(ctx, l, o); err != nil {
				r.Log.DebugContext(ctx, "could not roll forward a lock that a read found", "cell", l.Cell, "start_ts", l.StartTS, "error", err)
			}
		})
		return true, nil
	}
	return false, r.ResolveCell(ctx, l, o)
}

// resolveOneForLatest resolves a lock that a read of the latest state found beside newest, the
// newest commit. now is the estimated time of the oracle. ignore reports that the transaction
// was not committed when the row was read, and does not commit at or below newest. The function
// waits for a live owner only if the transaction may commit below newest.
func (r *Resolver) resolveOneForLatest(ctx context.Context, l *format.Lock, newest, now tso.Timestamp) (ignore bool, err error) {
	expired := now >= l.ExpiresTS()
	if l.IsPrimary() && l.StartTS > newest && !expired {
		return true, nil
	}
	ctx, span := r.Trace.Resolve(ctx, l)
	began := time.Now()
	asOf, justRead := newest, true
	if expired {
		// newest may be long ago, and only oracle time shows that the owner is dead.
		justRead = false
		if asOf, err = r.Clock.Timestamp(ctx); err == nil {
			err = checkStart(l, asOf)
		}
	}
	var o Outcome
	if err == nil {
		o, err = r.FindOutcome(ctx, l, asOf, justRead, func(l *format.Lock, o Outcome) bool {
			return l.StartTS <= newest && !passLock(ctx, r, o.Lock, newest)
		})
	}
	r.Metrics.LockWait(ctx, l.Cell.Table, began)
	defer func() {
		span.Set(telemetry.AttrAction.String(ActionName(o, 0)))
		span.EndWith(err)
	}()
	switch {
	case err != nil || o.LockGone:
		return false, err
	case !o.Final():
		return true, nil
	}
	return false, r.ResolveCell(ctx, l, o)
}

// ResolveForWrite resolves a lock that the prewrite of the transaction that started at ts
// found. Transactions that wait while they hold locks could deadlock. So only an older
// transaction waits, and a younger one fails at once (wait-die): the outcome is not final. The
// function calls unlatch before it waits. If the primary does not answer, the error is a
// store.StallError.
func (r *Resolver) ResolveForWrite(ctx context.Context, l *format.Lock, ts tso.Timestamp, unlatch func()) (o Outcome, err error) {
	ctx, span := r.Trace.Resolve(ctx, l)
	began := time.Now()
	o, err = r.findOutcome(ctx, l, ts, true, true, func(l *format.Lock, _ Outcome) bool {
		if ts < l.StartTS {
			unlatch()
			return true
		}
		return false
	})
	r.Metrics.LockWait(ctx, l.Cell.Table, began)
	defer func() {
		span.Set(telemetry.AttrAction.String(ActionName(o, 0)))
		span.EndWith(err)
	}()
	if err != nil || o.LockGone || !o.Final() {
		return o, err
	}
	return o, r.ResolveCell(ctx, l, o)
}

// ResolveLock is ResolveLocks for one lock.
func (r *Resolver) ResolveLock(ctx context.Context, l format.Lock) (s format.Status, err error) {
	failed := r.ResolveLocks(ctx, []format.Lock{l}, func(_ int, status format.Status, lockErr error) { s, err = status, lockErr })
	return s, cmp.Or(err, failed)
}

// ResolveLocks resolves locks at an operator's request, and calls each with the index and the
// status of every lock, one call at a time. It does not wait for live owners: their status is
// not final, and nothing has changed. It finds the outcome of each transaction with the first of
// its locks, and then resolves the others in parallel. If ctx ends, locks may be left out.
func (r *Resolver) ResolveLocks(ctx context.Context, locks []format.Lock, each func(i int, s format.Status, err error)) error {
	if err := r.Enter(); err != nil {
		return err
	}
	defer r.Leave()
	now, err := r.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	type transaction struct {
		primary format.Cell
		startTS tso.Timestamp
	}
	var first, others []int
	alive := map[transaction]bool{}
	for i, l := range locks {
		of := transaction{l.Primary, l.StartTS}
		if _, ok := alive[of]; ok {
			others = append(others, i)
		} else {
			first, alive[of] = append(first, i), false
		}
	}
	var mu sync.Mutex
	for _, some := range [][]int{first, others} {
		var g errgroup.Group
		g.SetLimit(r.Store.Config.Parallelism)
		for _, i := range some {
			g.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				l := &locks[i]
				of := transaction{l.Primary, l.StartTS}
				mu.Lock()
				s := format.Status{State: format.StateLocked, Lock: l}
				known := alive[of]
				mu.Unlock()
				var err error
				if !known {
					s, err = r.resolveLock(ctx, l, now)
				}
				mu.Lock()
				defer mu.Unlock()
				alive[of] = err == nil && s.State == format.StateLocked
				each(i, s, err)
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return store.Ended(ctx, "percolator: resolving locks", nil)
		}
	}
	return nil
}

// resolveLock resolves one lock. The oracle handed out now before the call.
func (r *Resolver) resolveLock(ctx context.Context, l *format.Lock, now tso.Timestamp) (s format.Status, err error) {
	if err := format.CheckStoredCell(l.Cell); err != nil {
		return format.Status{}, err
	}
	if err := format.CheckStoredCell(l.Primary); err != nil {
		return format.Status{}, err
	}
	ctx, span := r.Trace.ResolveRequested(ctx, l)
	defer func() {
		span.Set(telemetry.AttrAction.String(ActionName(Outcome{Status: s}, 0)))
		span.EndWith(err)
	}()
	if err := checkStart(l, now); err != nil {
		return format.Status{}, err
	}
	// The list may be old, and the owner may have kept the lock alive since.
	o, err := r.FindOutcome(ctx, l, now, false, WaitNever)
	if err != nil || !o.Final() {
		return o.Status, err
	}
	return o.Status, r.ResolveCell(ctx, l, o)
}

// FindOutcome finds out the outcome of the transaction that wrote l. If that transaction is
// dead, FindOutcome rolls it back at its primary, before anything else of it is cleaned up.
//
// asOf is any timestamp that the oracle handed out before the caller read l (justRead), or
// before the call. Only oracle time decides whether a lock has expired. So if the lock is
// old, the caller's own timestamp saves a request to the oracle.
//
// A lock that appeared below the safe point after a collector had resolved all locks there is
// rolled back, whatever the outcome of its transaction is: this cell was resolved before.
//
// The result is final, unless wait refused to wait for a live owner, or the lock does not
// exist any more.
func (r *Resolver) FindOutcome(ctx context.Context, l *format.Lock, asOf tso.Timestamp, justRead bool, wait waitPolicy) (Outcome, error) {
	return r.findOutcome(ctx, l, asOf, justRead, false, wait)
}

// findOutcome is FindOutcome. If holds is set, the caller holds locks: it does not wait for a primary
// that does not answer, and gets a store.StallError.
func (r *Resolver) findOutcome(ctx context.Context, l *format.Lock, asOf tso.Timestamp, justRead, holds bool, wait waitPolicy) (Outcome, error) {
	// Before anything else: the outcome does not matter for such a lock.
	if late, err := r.SafePoint.IsLate(ctx, l.StartTS); late || err != nil {
		return Outcome{Status: format.Status{State: format.StateRolledBack}}, err
	}
	if status, ok := r.Outcomes.get(l.StartTS); ok {
		return Outcome{Status: status}, nil
	}
	unresolved := func(err error) error {
		if errors.Is(err, format.ErrInvalid) {
			return format.Corruptf(l.Cell, "the lock at %d names the primary %s: %v", l.StartTS, l.Primary, err)
		}
		return fmt.Errorf("percolator: the lock on %s cannot be resolved: its primary is %s: %w", l.Cell, l.Primary, err)
	}
	t, err := r.Table(ctx, l.Primary.Table)
	if err != nil {
		return Outcome{}, unresolved(err)
	}
	r.Counters.LocksMet.Add(1)
	var last error
	ended := func() error { return store.Ended(ctx, "percolator: waiting for the lock on "+l.Cell.String(), last) }
	primary := patientReader{table: t, row: l.Primary.Row}
	for pause := r.Store.Config.Backoff.Start(); ; justRead = false {
		if !justRead || !l.IsPrimary() {
			if gone, err := primary.await(ctx, r, l, holds); gone || err != nil {
				return Outcome{LockGone: gone}, err
			}
		}
		// A primary lock that the caller just read shows the state of its transaction.
		o := Outcome{Status: format.Status{State: format.StateLocked, Lock: l}}
		if !justRead || !l.IsPrimary() {
			var locked bool
			o.Status, locked, err = readStatus(ctx, primary.read, l.Primary, l.StartTS)
			o.primaryCleared = err == nil && o.Final() && !locked
		}
		expires := l.ExpiresTS()
		if err == nil && !o.Final() {
			o, expires, err = r.rollBackIfDead(ctx, t, l, o, asOf, justRead)
			if err == nil && (o.LockGone || (o.undecided() && !wait(l, o))) {
				return o, nil
			}
		}
		switch {
		case err == nil && o.Final():
			r.Outcomes.Put(l.StartTS, o.Status)
			return o, nil
		case store.Permanent(err), errors.Is(err, format.ErrFormatVersion), errors.Is(err, format.ErrCorrupt):
			return Outcome{}, unresolved(err) // another read has the same result
		case err != nil:
			last = err
		}
		atMost := store.Remaining(asOf, expires)
		if atMost > 0 {
			atMost += time.Millisecond
		}
		if pause.Wait(ctx, atMost) != nil {
			return Outcome{}, ended()
		}
		// Before the next read of the primary: store.Undecided requires that.
		if asOf, err = r.Clock.Timestamp(ctx); err == nil {
			err = checkStart(l, asOf)
		} else if ctx.Err() != nil {
			err = ended()
		}
		if err != nil {
			return Outcome{}, err
		}
	}
}

// rollBackIfDead rolls an undecided transaction back if it is dead. The primary lock's ttl
// decides. Only if the primary has no lock, that of l decides (hazards 2 and 7). expires is
// the latest time for the next check. An Outcome that is changed asks for a check soon.
func (r *Resolver) rollBackIfDead(ctx context.Context, t *store.Table, l *format.Lock, o Outcome, asOf tso.Timestamp, justRead bool) (_ Outcome, expires tso.Timestamp, err error) {
	deciding := l
	if o.State == format.StateLocked {
		deciding = o.Lock
	} else if forgotten, err := r.SafePoint.Forgotten(ctx, l.StartTS); err != nil {
		return o, l.ExpiresTS(), err
	} else if !justRead || forgotten {
		// The primary is empty. There are two harmless reasons, and in both the lock is
		// gone too, so there is nothing to wait for or to roll back. First, an owner that
		// rolls its transaction back leaves no trace at the primary. Second, below the
		// safe point, garbage collection may have emptied the primary after the lock was
		// read; the collector resolved the lock before that.
		gone, err := r.lockIsGone(ctx, l)
		if gone || err != nil {
			return Outcome{LockGone: gone}, l.ExpiresTS(), err
		}
	}
	if dead, err := r.isDead(ctx, deciding, asOf); err != nil || !dead {
		return o, deciding.ExpiresTS(), err
	}
	r.Metrics.Stranded(deciding, asOf)
	rolledBack, err := rollBackPrimary(ctx, t, l.Primary, l.StartTS, o.State, asOf)
	if rolledBack.Final() && o.Lock != nil {
		r.noteResolved(o.Lock, rolledBack)
	}
	return rolledBack, deciding.ExpiresTS(), err
}

// lockIsGone reports whether a lock does not exist any more.
func (r *Resolver) lockIsGone(ctx context.Context, l *format.Lock) (bool, error) {
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return false, err
	}
	raw, err := t.TryReadRow(ctx, l.Cell.Row, store.Interleave(store.LockAt(l.Cell.Column(), l.StartTS)))
	return err == nil && len(raw[format.LockFamily]) == 0, err
}

// isDead reports whether a client may roll the lock back at oracle time now: it has
// expired, or its owner's worker token is stale or was removed. now may be long ago, and the lock's owner
// may have written it since. So isDead asks the oracle before it calls a ttl endless. It also
// does so before a rollback above now: a rollback marker above the oracle's time would block
// all writers of the cell.
func (r *Resolver) isDead(ctx context.Context, l *format.Lock, now tso.Timestamp) (bool, error) {
	dead := now >= l.ExpiresTS() || r.DeclaredDead.Load() == int64(l.StartTS) || r.Token.isDead(ctx, l.Owner, now)
	if !l.Endless(now) && (!dead || l.StartTS <= now) {
		return dead, nil
	}
	now, err := r.Clock.Timestamp(ctx)
	if err == nil {
		err = checkStart(l, now)
	}
	return dead || l.Endless(now), err
}

// checkStart returns an error if a lock has a start_ts above now, which the oracle handed out
// after the lock was read. No transaction of this oracle has written such a lock. To wait for
// its end could take centuries, and its rollback marker would block the cell as well.
func checkStart(l *format.Lock, now tso.Timestamp) error {
	if l.StartTS <= now {
		return nil
	}
	return format.Corruptf(l.Cell, "the lock is at %d, but the oracle is at %d: no transaction of this oracle wrote it. If the oracle was restored or replaced, run `percctl tso advance`. Otherwise remove the lock with `percctl repair plan %s`", l.StartTS, now, l.Cell.Table)
}

// rollBackPrimary makes sure that the transaction never commits. It replaces the primary
// lock, or the empty primary, by a rollback marker. A prewrite that arrives late conflicts
// with the marker (hazards 1 and 2). state is what the caller read at the primary. If the
// primary has changed since, the result is changed.
func rollBackPrimary(ctx context.Context, t *store.Table, primary format.Cell, startTS tso.Timestamp, state format.State, asOf tso.Timestamp) (Outcome, error) {
	col := primary.Column()
	mark := bigtable.NewMutation()
	mark.Set(format.MarkFamily, col.Key(), startTS.Cell(), format.EncodeRollback(startTS))
	var done bool
	var err error
	if state == format.StateLocked {
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

// ResolveCell rolls the lock's own cell forward or back, as the final outcome of its
// transaction says. It returns nil once the lock does not exist any more.
func (r *Resolver) ResolveCell(ctx context.Context, l *format.Lock, o Outcome) error {
	if l.IsPrimary() && o.primaryCleared {
		return nil
	}
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return err
	}
	m := bigtable.NewMutation()
	if o.State == format.StateCommitted {
		store.AddCommit(m, l, o.CommitTS, 0)
	} else {
		store.RemoveLockAndData(m, l.Cell.Column(), l.StartTS)
	}
	for pause := r.Store.Config.Backoff.Start(); ; {
		applied, err := t.CheckAndMutate(ctx, l.Cell.Row, store.LockAt(l.Cell.Column(), l.StartTS), m, nil)
		switch {
		case err == nil && applied:
			r.noteResolved(l, o)
			return nil
		case err == nil, store.Permanent(err):
			return err
		}
		// Sending the mutation again does no harm, whether it was applied or not.
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "percolator: clearing the lock on "+l.Cell.String(), err)
		}
	}
}

// ActionName returns the low-cardinality name of what happened to a lock. readTS is the
// timestamp of the read that found it, or 0 if no read did.
func ActionName(o Outcome, readTS tso.Timestamp) string {
	switch {
	case o.LockGone:
		return "gone"
	case o.State == format.StateCommitted && readTS > 0 && o.CommitTS > readTS:
		return "walked past"
	case o.State == format.StateCommitted:
		return "rolled forward"
	case o.State == format.StateRolledBack:
		return "rolled back"
	}
	return "left"
}

// noteResolved counts and reports a cell that was rolled forward or back.
func (r *Resolver) noteResolved(l *format.Lock, o Outcome) {
	r.Metrics.Resolved(l, ActionName(o, 0))
	if o.State == format.StateCommitted {
		r.Counters.RolledForward.Add(1)
		if l.Observed {
			r.Hints.Publish(l.Cell)
		}
	} else {
		r.Counters.RolledBack.Add(1)
	}
	if f := r.OnResolve.Load(); f != nil {
		(*f)(format.Resolution{Lock: *l, Status: o.Status})
	}
}
