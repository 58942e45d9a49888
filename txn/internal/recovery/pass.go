package recovery

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A reader at R that finds the lock of a live transaction need not wait for it (TiKV's
// min_commit_ts). It raises the minimum commit_ts in the primary lock to R, and then reads
// as if the lock did not exist. This is correct because from then on the transaction
// commits above R or not at all:
//
//   - The minimum is in the primary lock's record. The predicate of a commit at C requires
//     the lock with a minimum below C. However late the commit arrives, it finds the raised
//     minimum or no lock, and fails.
//   - The minimum only grows as long as the lock exists. A raise requires the same record
//     that the reader read. A heartbeat requires the minimum that it writes again. A
//     duplicate of the prewrite finds the lock and fails.
//   - The reader continues only after Bigtable acknowledged the raise, or if it read that
//     the minimum was R or above.
//
// If the owner reads its lock with a minimum of C or above, its commit at C has not taken
// effect and never will. So the owner may take a new commit_ts. This is the only case in
// which it may (hazard 5). docs/design/2026-11-20-min-commit-ts.md has all cases.

// maxRaises is how often readers may raise the minimum of one lock; after that, they wait.
// Otherwise readers of a popular cell could keep its writer from ever committing.
const maxRaises = 4

// LockWithMin matches the primary lock of startTS if its minimum commit_ts is in [from,
// below).
func LockWithMin(c format.Column, startTS, from, below tso.Timestamp) bigtable.Filter {
	return store.Interleave(store.Chain(store.ExactColumn(format.LockFamily, c.Key()), store.At(startTS),
		bigtable.ValueRangeFilter(format.PassableHeader(from), format.PassableHeader(below))))
}

// lockAsRead matches a passable lock whose record is still the same. A raise that arrives
// late must not undo a heartbeat's extension.
func lockAsRead(l *format.Lock) bigtable.Filter {
	return store.Interleave(store.Chain(store.ExactColumn(format.LockFamily, l.Cell.Column().Key()), store.At(l.StartTS),
		store.ExactValue([]byte(l.Record))))
}

// passLock makes sure that the transaction of the live primary lock l commits above ts or
// not at all, and reports whether that holds.
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
	applied, err := t.CheckAndMutate(ctx, l.Cell.Row, lockAsRead(l), m, nil)
	if applied && err == nil {
		r.Counters.Raises.Add(1)
	}
	// After an error, the caller reads the lock again and sees whether the raise was
	// applied.
	return applied && err == nil
}
