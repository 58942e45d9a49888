package txn

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"
)

// settle brings a commit whose outcome was unknown to its end: it sends the
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
func (r *resolver) settle(ctx context.Context, u *UndeterminedError) (s Status, err error) {
	if u == nil || u.StartTS <= 0 || u.CommitTS <= u.StartTS {
		return Status{}, invalid("Settle needs an UndeterminedError with Primary, StartTS and a CommitTS above it")
	}
	if err := checkCell(u.Primary); err != nil {
		return Status{}, err
	}
	if err := r.enter(); err != nil {
		return Status{}, err
	}
	defer r.leave()
	ctx, span := r.trace.call(ctx, "settle", u.Primary.Table)
	defer func() {
		span.set(attrStartTS.Int64(int64(u.StartTS)), attrCommitTS.Int64(int64(u.CommitTS)), attrAction.String(resolution(outcome{Status: s}, 0)))
		span.end(err)
	}()
	t, err := r.table(ctx, u.Primary.Table)
	if err != nil {
		return Status{}, u.because(err)
	}
	s, err = readStatus(ctx, t, u.Primary, u.StartTS)
	if err != nil {
		return Status{}, u.because(err)
	}
	if s.State == StateLocked {
		if err := r.safePoint.checkWrite(ctx, u.StartTS); err != nil {
			return Status{}, u.because(err)
		}
		m := bigtable.NewMutation()
		addCommit(m, s.Lock, u.CommitTS)
		p := &primaryCommit{resolver: r, table: t, primary: u.Primary, startTS: u.StartTS, commitTS: u.CommitTS, mutation: m, passable: s.Lock.Passable}
		err := p.run(ctx)
		if errors.Is(err, errPassed) {
			err = p.rollBack(ctx)
		}
		if err != nil && !errors.Is(err, ErrConflict) {
			return Status{}, u.because(err)
		}
		if s, err = readStatus(ctx, t, u.Primary, u.StartTS); err != nil {
			return Status{}, u.because(err)
		}
	}
	switch s.State {
	case StateCommitted:
		r.clock.madeCommit(s.CommitTS, time.Time{})
		return s, nil
	case StateRolledBack:
		if forgotten, err := r.safePoint.forgotten(ctx, u.StartTS); err != nil {
			return Status{}, u.because(err)
		} else if forgotten {
			return Status{}, u.because(errForgotten)
		}
		return s, nil
	}
	return Status{}, u.because(errNoTrace)
}
