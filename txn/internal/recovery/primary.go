package recovery

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A PrimaryCommit commits one primary and finds out whether the commit took effect.
type PrimaryCommit struct {
	Resolver *Resolver
	Table    *store.Table
	Primary  format.Cell
	StartTS  tso.Timestamp
	CommitTS tso.Timestamp
	Mutation *bigtable.Mutation

	// Passable says that readers may raise the minimum commit_ts (pass.go).
	Passable bool
	// CommitAt prepares the commit at another commit_ts. It is nil if the caller is not the
	// owner: only the owner can.
	CommitAt func(context.Context, tso.Timestamp) (*bigtable.Mutation, error)
	// lock is the primary lock as readBack read it last.
	lock *format.Lock
	// lost is how often readers have taken the commit_ts away, seals how often the owner has
	// tried to seal the lock, and looked when it began to read the lock.
	lost, seals int
	looked      time.Time
}

// Run commits the primary.
//
// The result is nil if the transaction is committed. It is a ConflictError if another client
// rolled the transaction back, and a CorruptError if the primary is committed at another
// commit_ts. If Bigtable refused every request for good (permission denied, for example),
// nothing was applied, and the result is Bigtable's error.
//
// In all other cases the outcome is undetermined, and the result is an UndeterminedError:
// ctx ended first; or Bigtable refused a request after an earlier one that may have been
// applied, so waiting would not help; or garbage collection passed the transaction.
func (p *PrimaryCommit) Run(ctx context.Context) error {
	var last error
	unknown := false // an earlier request may have been applied
	for pause := p.Resolver.Store.Config.Backoff.Start(); ; {
		if unknown {
			if err := p.Resolver.SafePoint.CheckWrite(ctx, p.StartTS); err != nil {
				// The collector has resolved the locks, or will.
				return p.undetermined(err)
			}
		}
		matched, err := p.Table.CheckAndMutate(ctx, p.Primary.Row, p.predicate(), p.Mutation, nil)
		refused := store.Permanent(err)
		switch {
		case err == nil && matched:
			return nil
		case err == nil:
			// An earlier request committed, another client rolled the transaction back,
			// or a reader raised the minimum.
			unknown = true
		case refused && !unknown:
			return err
		default:
			unknown = true
			last = err
		}
		if ctx.Err() == nil {
			var done bool
			p.looked = time.Now()
			if done, err = p.readBack(ctx); done {
				return err
			}
			switch {
			case err == nil && p.ruledOut(p.lock):
				taken, err := p.takeNewCommitTS(ctx, p.lock)
				switch {
				case taken:
					continue
				case err != nil && !store.Transient(err):
					return p.undetermined(err)
				case err != nil:
					last = err
				}
			case err == nil && refused:
				return p.undetermined(last)
			case err == nil:
			case store.Transient(err):
				last = err
			default:
				return p.undetermined(err)
			}
		}
		if pause.Wait(ctx, 0) != nil {
			return p.undetermined(store.Ended(ctx, "percolator: committing the primary", last))
		}
	}
}

func (p *PrimaryCommit) undetermined(err error) error {
	return &format.UndeterminedError{Primary: p.Primary, StartTS: p.StartTS, CommitTS: p.CommitTS, Err: err}
}

// readBack finds out the outcome from what the primary holds (design §4, unknown results).
// done is false if the primary lock still exists, or if the read failed: Run sends the
// commit again.
func (p *PrimaryCommit) readBack(ctx context.Context) (done bool, err error) {
	status, _, err := readStatus(ctx, p.Table.TryReadRow, p.Primary, p.StartTS)
	if err != nil {
		return false, err
	}
	switch status.State {
	case format.StateCommitted:
		if status.CommitTS != p.CommitTS {
			return true, format.Corruptf(p.Primary, "the transaction that started at %d is committed at %d instead of %d", p.StartTS, status.CommitTS, p.CommitTS)
		}
		return true, nil
	case format.StateRolledBack:
		if forgotten, err := p.Resolver.SafePoint.Forgotten(ctx, p.StartTS); err != nil {
			return false, err
		} else if forgotten {
			return true, p.undetermined(errForgotten)
		}
		return true, &format.ConflictError{Cell: p.Primary, StartTS: p.StartTS, Reason: format.ConflictRolledBack}
	case format.StateLocked:
		p.lock = status.Lock
		return false, nil
	}
	// The primary holds no lock, no record and no marker. Only garbage collection removes
	// those, and it does not show the outcome (design §8 rule 6).
	return true, p.undetermined(errNoTrace)
}

// errForgotten: the primary holds a rollback marker below the safe point. Garbage
// collection may have removed a commit there, and a late resolver that found nothing may
// have set the marker.
var errForgotten = errors.New("the primary holds a rollback marker, but the transaction is below the safe point, where that proves nothing: its commit may have been garbage-collected")

var errNoTrace = errors.New("the primary holds no trace of the transaction: its records were garbage-collected")

// errLockPassed: a commit in place of the owner cannot take a new commit_ts. Only the owner
// knows the transaction's weak notifications. They would stay at the old commit_ts, where
// an observer may already have handled them.
var errLockPassed = errors.New("a reader has passed the transaction's lock, so the transaction can no longer commit at this commit_ts; only its own Commit could take another one")

// RollBack rolls the transaction back if the primary lock still exists. It is for a commit
// that nobody will send again: Bigtable refused it, or it ended with errLockPassed and its
// owner has given up. Perhaps no reader will ever reach the lock. done is false if the lock
// was gone, which is also so if an earlier attempt rolled the transaction back.
func (p *PrimaryCommit) RollBack(ctx context.Context) (done bool, err error) {
	for pause := p.Resolver.Store.Config.Backoff.Start(); ; {
		outcome, err := rollBackPrimary(ctx, p.Table, p.Primary, p.StartTS, format.StateLocked, 0)
		if err == nil || store.Permanent(err) {
			return outcome.Final(), err
		}
		// Sending the mutation again does no harm, whether it was applied or not.
		if pause.Wait(ctx, 0) != nil {
			return false, store.Ended(ctx, "percolator: rolling back the primary", err)
		}
	}
}

// predicate matches if a commit at p.CommitTS may take effect.
func (p *PrimaryCommit) predicate() bigtable.Filter {
	if p.Passable {
		return LockWithMin(p.Primary.Column(), p.StartTS, 0, p.CommitTS)
	}
	return store.LockAt(p.Primary.Column(), p.StartTS)
}

// ruledOut reports whether the lock l, as it was read back, shows that a commit at
// p.CommitTS has not taken effect and never will.
func (p *PrimaryCommit) ruledOut(l *format.Lock) bool {
	return p.Passable && l.MinCommitTS >= p.CommitTS
}

// takeNewCommitTS takes a new commit_ts after the old one was ruled out. It repeats what a
// commit must do between its commit_ts and the commit of the primary.
//
// Readers could take each commit_ts away. So the owner seals the lock first if this is the
// second time, if it has to wait for the oracle anyway, or if it is so slow that readers
// would probably come first again. taken is false if the seal was not acknowledged: Run reads
// the lock again.
func (p *PrimaryCommit) takeNewCommitTS(ctx context.Context, l *format.Lock) (taken bool, err error) {
	if p.CommitAt == nil {
		return false, errLockPassed
	}
	ts, _, err := p.Resolver.Clock.CommitTimestamp(ctx)
	if err != nil {
		return false, err
	}
	answered, above := time.Now(), l.MinCommitTS
	if above-ts > maxWaitForMin {
		return false, format.Corruptf(p.Primary, "readers have raised the minimum commit_ts to %d, which is far above the oracle's newest timestamp, %d", above, ts)
	}
	if p.lost++; !l.Sealed && (p.lost > 1 || above >= ts || time.Since(p.looked) >= SlowOwner) {
		above = max(above, ts+ahead(ts-p.StartTS)) + margin(time.Since(p.looked), p.seals)
		p.seals++
		if sealed, err := sealLock(ctx, p.Table, l, above); err != nil || !sealed {
			return false, err
		}
	}
	for ts <= above {
		if err := store.Sleep(ctx, time.Duration(above-ts+1)*time.Microsecond-time.Since(answered)); err != nil {
			return false, store.Ended(ctx, "percolator: waiting for a commit_ts above the readers that passed the lock", nil)
		}
		if ts, _, err = p.Resolver.Clock.CommitTimestamp(ctx); err != nil {
			return false, err
		}
		answered = time.Now()
	}
	if err := p.Resolver.SafePoint.CheckWrite(ctx, p.StartTS); err != nil {
		return false, err
	}
	m, err := p.CommitAt(ctx, ts)
	if err != nil {
		return false, err
	}
	p.CommitTS, p.Mutation = ts, m
	return true, nil
}

// maxWaitForMin, in µs, is far above what raises and seals lead to.
const maxWaitForMin = tso.Timestamp(60_000_000)
