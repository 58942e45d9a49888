package recovery

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// PrimaryCommit brings one commit of a primary to a known outcome.
type PrimaryCommit struct {
	Resolver *Resolver
	Table    *store.Table
	Primary  format.Cell
	StartTS  tso.Timestamp
	CommitTS tso.Timestamp
	Mutation *bigtable.Mutation

	// Passable: readers may raise the minimum commit timestamp (pass.go). commitAt
	// prepares the commit at another one; nil: only the owner can.
	Passable bool
	CommitAt func(context.Context, tso.Timestamp) (*bigtable.Mutation, error)
	lock     *format.Lock // the primary lock as it was read back last
}

// Run returns nil when the transaction is committed, a ConflictError when it
// was rolled back by others, and an UndeterminedError when ctx ends first. When
// Bigtable refuses every request for good (permission denied, say), nothing was
// applied, and the refusal is returned; when it begins to refuse after a
// request whose outcome is unknown, waiting would not help, and the outcome is
// undetermined.
func (p *PrimaryCommit) Run(ctx context.Context) error {
	var last error
	unknown := false // a request that may have been applied was sent
	for pause := p.Resolver.Store.Config.Backoff.Start(); ; {
		refused := false
		if unknown {
			if err := p.Resolver.SafePoint.CheckWrite(ctx, p.StartTS); err != nil {
				// The locks are resolved by now, or about to be.
				return p.undetermined(err)
			}
		}
		matched, err := p.Table.CheckAndMutate(ctx, p.Primary.Row, p.predicate(), p.Mutation, nil)
		switch {
		case err == nil && matched:
			return nil
		case err == nil:
			unknown = true // the lock is gone: an earlier send, or a rollback
		case store.Permanent(err) && !unknown:
			return err
		default:
			refused = store.Permanent(err)
			unknown = true
			last = err
		}
		if ctx.Err() == nil {
			var done bool
			if done, err = p.readBack(ctx); done {
				return err
			}
			switch {
			case err == nil && p.ruledOut(p.lock):
				if err := p.takeNewCommitTS(ctx, p.lock); err != nil {
					return p.undetermined(err)
				}
				continue
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
			return p.undetermined(store.Ended(ctx, "committing the primary", last))
		}
	}
}

func (p *PrimaryCommit) undetermined(err error) error {
	return &format.UndeterminedError{Primary: p.Primary, StartTS: p.StartTS, CommitTS: p.CommitTS, Err: err}
}

// readBack settles an outcome from what the primary holds (design §4, unknown
// results). Not done: the primary lock is still there, or nothing could be
// read; the commit is to be sent again.
func (p *PrimaryCommit) readBack(ctx context.Context) (done bool, err error) {
	s, err := ReadStatus(ctx, p.Table, p.Primary, p.StartTS)
	if err != nil {
		return false, err
	}
	switch s.State {
	case format.StateCommitted:
		if s.CommitTS != p.CommitTS {
			return true, format.Corruptf(p.Primary, "the transaction that started at %d is committed at %d instead of %d", p.StartTS, s.CommitTS, p.CommitTS)
		}
		p.Resolver.Outcomes.Put(p.StartTS, s)
		return true, nil
	case format.StateRolledBack:
		if forgotten, err := p.Resolver.SafePoint.Forgotten(ctx, p.StartTS); err != nil {
			return false, err
		} else if forgotten {
			return true, p.undetermined(errForgotten)
		}
		p.Resolver.Outcomes.Put(p.StartTS, s)
		return true, &format.ConflictError{Cell: p.Primary, StartTS: p.StartTS, Reason: format.ConflictRolledBack}
	case format.StateLocked:
		p.lock = s.Lock
		return false, nil
	}
	// Neither lock nor record nor marker: only garbage collection takes those
	// away, and it proves nothing (design §8 rule 6).
	return true, p.undetermined(errNoTrace)
}

// errForgotten: below the safe point a marker may stand where a commit was
// collected: a late resolver sets it when it finds nothing.
var errForgotten = errors.New("the primary holds a rollback marker, but the transaction is below the safe point, where that proves nothing: its commit may have been garbage-collected")

var errNoTrace = errors.New("the primary holds no trace of the transaction: its records were garbage-collected")

// errLockPassed: the weak notifications of the transaction, which only its owner
// knows, would stay at the old commit_ts, where an observer may have taken them.
var errLockPassed = errors.New("a reader has passed the transaction's lock, so it does not commit at this commit_ts any more, and only its own Commit could take another")

// rollBack ends a commit that ended in errPassed: its owner has given up, so that
// nobody can take another commit_ts, and perhaps nobody ever meets the lock.
func (p *PrimaryCommit) rollBack(ctx context.Context) error {
	for pause := p.Resolver.Store.Config.Backoff.Start(); ; {
		s, err := rollBackPrimary(ctx, p.Table, p.Primary, p.StartTS, format.StateLocked, 0)
		if s.Final() {
			p.Resolver.noteResolved(p.lock, s)
		}
		if err == nil || store.Permanent(err) {
			return err
		}
		// Whether it was applied or not, sending it again is harmless.
		if pause.Wait(ctx, 0) != nil {
			return store.Ended(ctx, "rolling back a commit that a reader has passed", err)
		}
	}
}

// predicate is that of a commit at commitTS.
func (p *PrimaryCommit) predicate() bigtable.Filter {
	if p.Passable {
		return LockWithMin(p.Primary.Column(), p.StartTS, 0, p.CommitTS)
	}
	return store.LockAt(p.Primary.Column(), p.StartTS)
}

// ruledOut: the lock that was read back says that a commit at commitTS has not
// landed and never will.
func (p *PrimaryCommit) ruledOut(l *format.Lock) bool {
	return p.Passable && l.MinCommitTS >= p.CommitTS
}

// takeNewCommitTS takes a new commit_ts after the old one was ruled out, and whatever else
// stands between commit_ts and the commit.
func (p *PrimaryCommit) takeNewCommitTS(ctx context.Context, l *format.Lock) error {
	if p.CommitAt == nil {
		return errLockPassed
	}
	ts, err := p.Resolver.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if ts <= l.MinCommitTS {
		return format.Corruptf(p.Primary, "readers have raised the minimum commit_ts to %d, which is not before the oracle's present, %d", l.MinCommitTS, ts)
	}
	if err := p.Resolver.SafePoint.CheckWrite(ctx, p.StartTS); err != nil {
		return err
	}
	m, err := p.CommitAt(ctx, ts)
	if err != nil {
		return err
	}
	p.CommitTS, p.Mutation = ts, m
	return nil
}
