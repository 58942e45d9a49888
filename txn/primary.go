package txn

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// primaryCommit brings one commit of a primary to a known outcome.
type primaryCommit struct {
	client   *Client
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
	for pause := p.client.cfg.Backoff.start(); ; {
		refused := false
		if unknown {
			if err := p.client.checkWrite(ctx, p.startTS); err != nil {
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
	s, err := p.table.fate(ctx, p.primary, p.startTS)
	if err != nil {
		return false, err
	}
	switch s.State {
	case StateCommitted:
		if s.CommitTS != p.commitTS {
			return true, corrupt(p.primary, "the transaction that started at %d is committed at %d instead of %d", p.startTS, s.CommitTS, p.commitTS)
		}
		p.client.fates.put(p.startTS, s)
		return true, nil
	case StateRolledBack:
		if forgotten, err := p.client.forgotten(ctx, p.startTS); err != nil {
			return false, err
		} else if forgotten {
			return true, p.undetermined(errForgotten)
		}
		p.client.fates.put(p.startTS, s)
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

// Settle brings a commit whose outcome was unknown to its end: it sends the
// commit again, with the same commit timestamp, as long as the primary lock is
// there, and otherwise reads what became of it. A commit that cannot land any more,
// because a reader has passed its lock (Config.PassLocks), it rolls back. It returns
// StateCommitted or
// StateRolledBack, or an UndeterminedError when it could not find out, because
// ctx ended once more, for example, or because garbage collection has passed the
// transaction: from then on only a record of the commit proves anything, and a
// commit is not sent any more. It may be
// called from another process than the one that committed, with the exported
// fields of the UndeterminedError alone.
func (c *Client) Settle(ctx context.Context, u *UndeterminedError) (s Status, err error) {
	if u == nil || u.StartTS <= 0 || u.CommitTS <= u.StartTS {
		return Status{}, invalid("Settle needs an UndeterminedError with Primary, StartTS and a CommitTS above it")
	}
	if err := checkCell(u.Primary); err != nil {
		return Status{}, err
	}
	if err := c.enter(); err != nil {
		return Status{}, err
	}
	defer c.leave()
	ctx, span := c.trace.call(ctx, "settle", u.Primary.Table)
	defer func() {
		span.set(attrStartTS.Int64(int64(u.StartTS)), attrCommitTS.Int64(int64(u.CommitTS)), attrAction.String(resolution(s, 0)))
		span.end(err)
	}()
	t, err := c.table(ctx, u.Primary.Table)
	if err != nil {
		return Status{}, u.because(err)
	}
	s, err = t.fate(ctx, u.Primary, u.StartTS)
	if err != nil {
		return Status{}, u.because(err)
	}
	if s.State == StateLocked {
		if err := c.checkWrite(ctx, u.StartTS); err != nil {
			return Status{}, u.because(err)
		}
		m := bigtable.NewMutation()
		addCommit(m, s.Lock, u.CommitTS)
		p := &primaryCommit{client: c, table: t, primary: u.Primary, startTS: u.StartTS, commitTS: u.CommitTS, mutation: m, passable: s.Lock.Passable}
		err := p.run(ctx)
		if errors.Is(err, errPassed) {
			err = p.rollBack(ctx)
		}
		if err != nil && !errors.Is(err, ErrConflict) {
			return Status{}, u.because(err)
		}
		if s, err = t.fate(ctx, u.Primary, u.StartTS); err != nil {
			return Status{}, u.because(err)
		}
	}
	switch s.State {
	case StateCommitted:
		c.madeCommit(s.CommitTS, time.Time{})
		return s, nil
	case StateRolledBack:
		if forgotten, err := c.forgotten(ctx, u.StartTS); err != nil {
			return Status{}, u.because(err)
		} else if forgotten {
			return Status{}, u.because(errForgotten)
		}
		return s, nil
	}
	return Status{}, u.because(errNoTrace)
}

// because is u with another reason.
func (e *UndeterminedError) because(err error) *UndeterminedError {
	return &UndeterminedError{Primary: e.Primary, StartTS: e.StartTS, CommitTS: e.CommitTS, Err: err}
}
