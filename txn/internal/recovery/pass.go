package recovery

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A reader at R that meets the lock of a live transaction need not wait for it
// (TiKV's min_commit_ts): it raises the minimum commit timestamp in the primary
// lock to R and reads as if the lock were not there, because from then on the
// transaction commits above R or not at all. That holds because
//
//   - the minimum stands in the primary lock's record, and the commit's predicate
//     is that the lock is there with a minimum below C: a commit at C, however
//     late it lands, finds it or finds no lock;
//   - the minimum only grows as long as the lock is there: a raise is conditional on
//     the very record that it replaces, a heartbeat on the minimum that it keeps, and
//     a duplicate of the prewrite finds the lock;
//   - the reader goes on only once the raise is acknowledged, or the minimum was
//     read to be at R already.
//
// An owner that finds its lock with a minimum at or above C knows that its
// commit at C has not landed and never will, and so may take a new commit_ts; in
// no other case (hazard 5). docs/design/2026-11-20-min-commit-ts.md has the
// cases.

// maxRaises bounds how often readers raise one lock; then they wait. Otherwise a
// cell that is read all the time could keep its writer from ever committing.
const maxRaises = 4

// LockWithMin matches the primary lock of startTS with a minimum commit
// timestamp in [from, below).
func LockWithMin(c format.Column, startTS, from, below tso.Timestamp) bigtable.Filter {
	return store.Interleave(store.Chain(store.ExactColumn(format.LockFamily, c.Key()), store.At(startTS),
		bigtable.ValueRangeFilter(format.PassableHeader(from), format.PassableHeader(below))))
}

// lockAsRead matches a passable lock as long as nobody has changed its record: a
// raise that comes late must not take a heartbeat's extension back.
func lockAsRead(l *format.Lock) bigtable.Filter {
	return store.Interleave(store.Chain(store.ExactColumn(format.LockFamily, l.Cell.Column().Key()), store.At(l.StartTS),
		bigtable.ValueRangeFilter([]byte(l.Record), []byte(l.Record+"\x00"))))
}

// passLock makes sure that the transaction that left the live primary lock l commits
// above ts, if ever, and reports whether that is so.
func passLock(ctx context.Context, r *Resolver, l *format.Lock, ts tso.Timestamp) bool {
	switch {
	case !r.Config.PassLocks || l == nil || !l.Passable:
		return false
	case l.MinCommitTS >= ts:
		return true
	case l.Raises >= maxRaises:
		return false
	}
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return false
	}
	raised := *l
	raised.MinCommitTS = ts
	raised.Raises++
	col := l.Cell.Column()
	m := bigtable.NewMutation()
	m.Set(format.LockFamily, col.Key(), l.StartTS.Cell(), format.EncodeLock(&raised))
	did, err := t.CheckAndMutate(ctx, l.Cell.Row, lockAsRead(l), m, nil)
	if did && err == nil {
		r.Counters.Raises.Add(1)
	}
	// After an error the lock is read again, and tells.
	return did && err == nil
}
