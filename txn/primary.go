package txn

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// primaryCommit brings one commit of a primary to a known outcome.
type primaryCommit struct {
	resolver *resolver
	table    *table
	primary  Cell
	startTS  tso.Timestamp
	commitTS tso.Timestamp
	mutation *bigtable.Mutation

	// passable: readers may raise the minimum commit timestamp (pass.go). commitAt
	// prepares the commit at another one; nil: only the owner can.
	passable bool
	commitAt func(context.Context, tso.Timestamp) (*bigtable.Mutation, error)
	lock     *Lock // the primary lock as it was read back last
}

// run returns nil when the transaction is committed, a ConflictError when it
// was rolled back by others, and an UndeterminedError when ctx ends first. When
// Bigtable refuses every request for good (permission denied, say), nothing was
// applied, and the refusal is returned; when it begins to refuse after a
// request whose outcome is unknown, waiting would not help, and the outcome is
// undetermined.
func (p *primaryCommit) run(ctx context.Context) error {
	var last error
	unknown := false // a request that may have been applied was sent
	for pause := p.resolver.store.cfg.Backoff.start(); ; {
		refused := false
		if unknown {
			if err := p.resolver.safePoint.checkWrite(ctx, p.startTS); err != nil {
				// The locks are resolved by now, or about to be.
				return p.undetermined(err)
			}
		}
		matched, err := p.table.checkAndMutate(ctx, p.primary.Row, p.predicate(), p.mutation, nil)
		switch {
		case err == nil && matched:
			return nil
		case err == nil:
			unknown = true // the lock is gone: an earlier send, or a rollback
		case permanent(err) && !unknown:
			return err
		default:
			refused = permanent(err)
			unknown = true
			last = err
		}
		if ctx.Err() == nil {
			var done bool
			if done, err = p.readBack(ctx); done {
				return err
			}
			switch {
			case err == nil && p.raised(p.lock):
				if err := p.renew(ctx, p.lock); err != nil {
					return p.undetermined(err)
				}
				continue
			case err == nil && refused:
				return p.undetermined(last)
			case err == nil:
			case transient(err):
				last = err
			default:
				return p.undetermined(err)
			}
		}
		if pause.wait(ctx, 0) != nil {
			return p.undetermined(ended(ctx, "committing the primary", last))
		}
	}
}

func (p *primaryCommit) undetermined(err error) error {
	return &UndeterminedError{Primary: p.primary, StartTS: p.startTS, CommitTS: p.commitTS, Err: err}
}

// readBack settles an outcome from what the primary holds (design §4, unknown
// results). Not done: the primary lock is still there, or nothing could be
// read; the commit is to be sent again.
func (p *primaryCommit) readBack(ctx context.Context) (done bool, err error) {
	s, err := readStatus(ctx, p.table, p.primary, p.startTS)
	if err != nil {
		return false, err
	}
	switch s.State {
	case StateCommitted:
		if s.CommitTS != p.commitTS {
			return true, corrupt(p.primary, "the transaction that started at %d is committed at %d instead of %d", p.startTS, s.CommitTS, p.commitTS)
		}
		p.resolver.known.put(p.startTS, s)
		return true, nil
	case StateRolledBack:
		if forgotten, err := p.resolver.safePoint.forgotten(ctx, p.startTS); err != nil {
			return false, err
		} else if forgotten {
			return true, p.undetermined(errForgotten)
		}
		p.resolver.known.put(p.startTS, s)
		return true, &ConflictError{Cell: p.primary, StartTS: p.startTS, Reason: ConflictRolledBack}
	case StateLocked:
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

// errPassed: the weak notifications of the transaction, which only its owner
// knows, would stay at the old commit_ts, where an observer may have taken them.
var errPassed = errors.New("a reader has passed the transaction's lock, so it does not commit at this commit_ts any more, and only its own Commit could take another")

// rollBack ends a commit that ended in errPassed: its owner has given up, so that
// nobody can take another commit_ts, and perhaps nobody ever meets the lock.
func (p *primaryCommit) rollBack(ctx context.Context) error {
	for pause := p.resolver.store.cfg.Backoff.start(); ; {
		s, err := rollBackPrimary(ctx, p.table, p.primary, p.startTS, StateLocked, 0)
		if s.Final() {
			p.resolver.resolved(p.lock, s)
		}
		if err == nil || permanent(err) {
			return err
		}
		// Whether it was applied or not, sending it again is harmless.
		if pause.wait(ctx, 0) != nil {
			return ended(ctx, "rolling back a commit that a reader has passed", err)
		}
	}
}

// predicate is that of a commit at commitTS.
func (p *primaryCommit) predicate() bigtable.Filter {
	if p.passable {
		return lockWithMin(p.primary.Column(), p.startTS, 0, p.commitTS)
	}
	return lockAt(p.primary.Column(), p.startTS)
}

// raised: the lock that was read back says that a commit at commitTS has not
// landed and never will.
func (p *primaryCommit) raised(l *Lock) bool {
	return p.passable && l.MinCommitTS >= p.commitTS
}

// renew takes a new commit_ts after the old one was ruled out, and whatever else
// stands between commit_ts and the commit.
func (p *primaryCommit) renew(ctx context.Context, l *Lock) error {
	if p.commitAt == nil {
		return errPassed
	}
	ts, err := p.resolver.clock.timestamp(ctx)
	if err != nil {
		return err
	}
	if ts <= l.MinCommitTS {
		return corrupt(p.primary, "readers have raised the minimum commit_ts to %d, which is not before the oracle's present, %d", l.MinCommitTS, ts)
	}
	if err := p.resolver.safePoint.checkWrite(ctx, p.startTS); err != nil {
		return err
	}
	m, err := p.commitAt(ctx, ts)
	if err != nil {
		return err
	}
	p.commitTS, p.mutation = ts, m
	return nil
}
