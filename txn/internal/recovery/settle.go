package recovery

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

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
func Settle(ctx context.Context, r *Resolver, u *format.UndeterminedError) (s format.Status, err error) {
	if u == nil || u.StartTS <= 0 || u.CommitTS <= u.StartTS {
		return format.Status{}, format.Invalidf("Settle needs an UndeterminedError with Primary, StartTS and a CommitTS above it")
	}
	if err := format.CheckCell(u.Primary); err != nil {
		return format.Status{}, err
	}
	if err := r.Enter(); err != nil {
		return format.Status{}, err
	}
	defer r.Leave()
	ctx, span := r.Trace.Call(ctx, "settle", u.Primary.Table)
	defer func() {
		span.Set(telemetry.AttrStartTS.Int64(int64(u.StartTS)), telemetry.AttrCommitTS.Int64(int64(u.CommitTS)), telemetry.AttrAction.String(ActionName(Outcome{Status: s}, 0)))
		span.EndWith(err)
	}()
	t, err := r.Table(ctx, u.Primary.Table)
	if err != nil {
		return format.Status{}, u.Because(err)
	}
	s, err = ReadStatus(ctx, t, u.Primary, u.StartTS)
	if err != nil {
		return format.Status{}, u.Because(err)
	}
	if s.State == format.StateLocked {
		if err := r.SafePoint.CheckWrite(ctx, u.StartTS); err != nil {
			return format.Status{}, u.Because(err)
		}
		m := bigtable.NewMutation()
		store.AddCommit(m, s.Lock, u.CommitTS)
		p := &PrimaryCommit{Resolver: r, Table: t, Primary: u.Primary, StartTS: u.StartTS, CommitTS: u.CommitTS, Mutation: m, Passable: s.Lock.Passable}
		err := p.Run(ctx)
		if errors.Is(err, errLockPassed) {
			err = p.rollBack(ctx)
		}
		if err != nil && !errors.Is(err, format.ErrConflict) {
			return format.Status{}, u.Because(err)
		}
		if s, err = ReadStatus(ctx, t, u.Primary, u.StartTS); err != nil {
			return format.Status{}, u.Because(err)
		}
	}
	switch s.State {
	case format.StateCommitted:
		r.Clock.NoteCommit(s.CommitTS, time.Time{})
		return s, nil
	case format.StateRolledBack:
		if forgotten, err := r.SafePoint.Forgotten(ctx, u.StartTS); err != nil {
			return format.Status{}, u.Because(err)
		} else if forgotten {
			return format.Status{}, u.Because(errForgotten)
		}
		return s, nil
	}
	return format.Status{}, u.Because(errNoTrace)
}
