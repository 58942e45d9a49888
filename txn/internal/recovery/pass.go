package recovery

import (
	"context"
	"time"

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
//     that the reader read. A heartbeat requires the minimum that it writes again. A seal
//     requires one below its own. A duplicate of the prewrite finds the lock and fails.
//   - The reader continues only after Bigtable acknowledged the raise, or if it read that
//     the minimum was R or above.
//
// If the owner reads its lock with a minimum of C or above, its commit at C has not taken
// effect and never will. So the owner may take a new commit_ts. This is the only case in
// which it may (hazard 5).
//
// A raise costs the owner nothing before it has asked for its commit_ts. So readers may raise
// as often as they like, until the owner seals the lock (PrimaryCommit.takeNewCommitTS). Then
// readers above the minimum wait. A raise goes beyond the read's timestamp, so that the next
// readers pass without a write: by a tenth of the transaction's age, and at most maxAhead
// (docs/design/recovery.md).

const (
	aheadPart = 10
	maxAhead  = 100_000 // µs
)

// ahead returns how far a raise goes beyond the timestamp of the read.
func ahead(age tso.Timestamp) tso.Timestamp {
	return max(0, min(age/aheadPart, maxAhead))
}

// SlowOwner is how long two requests take of an owner that goes ahead of the readers as soon as
// one of them has come first. A faster owner tries once more before it does.
const SlowOwner = 20 * time.Millisecond

// AheadOfReaders returns how far the owner's next write of its lock goes beyond the minimum
// that it has read, so that it comes before the raises of readers. took is how long its last
// two requests took. failed says how many such writes came too late.
func AheadOfReaders(took time.Duration, failed int) tso.Timestamp {
	return maxAhead + margin(took, failed)
}

// margin is how far readers get while the owner sends a request, in µs, and twice as much for
// each such request that came too late.
func margin(took time.Duration, failed int) tso.Timestamp {
	return tso.Timestamp((min(max(took, time.Millisecond), time.Second) << min(failed, 4)).Microseconds())
}

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
	case l.Sealed:
		return false
	}
	t, err := r.Table(ctx, l.Cell.Table)
	if err != nil {
		return false
	}
	raised := *l
	raised.MinCommitTS = ts + ahead(ts-l.StartTS)
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

// sealLock raises the minimum of the owner's primary lock l to minCommit and ends the raises of
// readers, if the stored minimum is below that. It does not require the record that the owner
// read: readers could change that each time. So it may undo an extension by a heartbeat; the
// next one comes before the lock expires.
func sealLock(ctx context.Context, t *store.Table, l *format.Lock, minCommit tso.Timestamp) (sealed bool, err error) {
	s := *l
	s.MinCommitTS, s.Sealed = minCommit, true
	col := l.Cell.Column()
	m := bigtable.NewMutation()
	m.Set(format.LockFamily, col.Key(), l.StartTS.Cell(), format.EncodeLock(&s))
	return t.CheckAndMutate(ctx, l.Cell.Row, LockWithMin(col, l.StartTS, 0, minCommit), m, nil)
}
