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

// Settle finds out the outcome of a commit whose answer was lost:
//
//   - As long as the primary lock exists, Settle sends the commit again, with the same
//     commit_ts.
//   - If a reader has passed the lock (Config.PassLocks), the commit cannot take effect any
//     more. Settle rolls the transaction back.
//   - If the lock is gone, Settle reads the outcome from the primary.
//
// The result is StateCommitted or StateRolledBack, or an UndeterminedError if Settle could
// not find out. That is so if ctx ended, for example, or if garbage collection has passed
// the transaction: then only a record of the commit proves anything, and Settle does not
// send the commit.
//
// Another process than the one that committed may call Settle, with the exported fields of
// the UndeterminedError alone.
func Settle(ctx context.Context, r *Resolver, u *format.UndeterminedError) (s format.Status, err error) {
	if u == nil || u.StartTS <= 0 || u.CommitTS <= u.StartTS {
		return format.Status{}, format.Invalidf("Settle needs an UndeterminedError with a Primary, a positive StartTS and a CommitTS above it")
	}
	if err := format.CheckStoredCell(u.Primary); err != nil {
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
		return format.Status{}, withReason(u, err)
	}
	s, err = ReadStatus(ctx, t, u.Primary, u.StartTS)
	if err != nil {
		return format.Status{}, withReason(u, err)
	}
	if s.State == format.StateLocked {
		if err := r.SafePoint.CheckWrite(ctx, u.StartTS); err != nil {
			return format.Status{}, withReason(u, err)
		}
		m := bigtable.NewMutation()
		store.AddCommit(m, s.Lock, u.CommitTS, 0)
		p := &PrimaryCommit{Resolver: r, Table: t, Primary: u.Primary, StartTS: u.StartTS, CommitTS: u.CommitTS, Mutation: m, Passable: s.Lock.Passable}
		err := p.Run(ctx)
		if errors.Is(err, errLockPassed) {
			_, err = p.RollBack(ctx)
		}
		if err != nil && !errors.Is(err, format.ErrConflict) {
			return format.Status{}, withReason(u, err)
		}
		if s, err = ReadStatus(ctx, t, u.Primary, u.StartTS); err != nil {
			return format.Status{}, withReason(u, err)
		}
	}
	switch s.State {
	case format.StateCommitted:
		r.Clock.NoteCommit(s.CommitTS, time.Time{})
		r.Claims.Settled(u.StartTS, true)
		return s, nil
	case format.StateRolledBack:
		if forgotten, err := r.SafePoint.Forgotten(ctx, u.StartTS); err != nil {
			return format.Status{}, withReason(u, err)
		} else if forgotten {
			return format.Status{}, withReason(u, errForgotten)
		}
		r.Claims.Settled(u.StartTS, false)
		return s, nil
	}
	return format.Status{}, withReason(u, errNoTrace)
}

// withReason returns u with another reason.
func withReason(u *format.UndeterminedError, err error) error {
	return &format.UndeterminedError{Primary: u.Primary, StartTS: u.StartTS, CommitTS: u.CommitTS, Err: err}
}
