package admin

import (
	"cmp"
	"context"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Locks iterates over the locks in rows of a table (nil: all rows), both live and
// stranded ones, in order of row keys. It reads page by page and changes nothing.
//
// A lock that it cannot read comes with an error (txn.ErrCorrupt or
// txn.ErrFormatVersion), and only its Cell and StartTS are set. The loop may
// continue after it. Any other error ends the iteration.
func Locks(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[format.Lock, error] {
	c := access.ResolverOf(client)
	return listLocks(ctx, c, table, rs, store.WholeFamily(format.LockFamily))
}

// TransactionLocks iterates over the locks of one transaction in rows of a table
// (nil: all rows), as [Locks] does.
func TransactionLocks(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet, startTS tso.Timestamp) iter.Seq2[format.Lock, error] {
	c := access.ResolverOf(client)
	return listLocks(ctx, c, table, rs, store.Chain(store.WholeFamily(format.LockFamily), store.At(startTS)))
}

func listLocks(ctx context.Context, c *recovery.Resolver, name string, rs bigtable.RowSet, f bigtable.Filter) iter.Seq2[format.Lock, error] {
	return func(yield func(format.Lock, error) bool) {
		count, now := 0, c.Clock.Now()
		ctx, span := c.Trace.Call(ctx, "list locks", name)
		err := c.Pages(ctx, name, rs, func(*store.Table) bigtable.Filter { return store.Interleave(f) }, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				for _, item := range raw[format.LockFamily] {
					ts := tso.FromCell(item.Timestamp)
					_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
					l := &format.Lock{Cell: cell, StartTS: ts}
					if err != nil {
						l.Cell = format.Cell{Table: t.Name, Row: raw.Key(), Family: format.LockFamily}
					} else if decoded, derr := format.DecodeLock(cell, ts, item.Value); derr != nil {
						err = derr
					} else {
						l = decoded
						c.Metrics.Listed(l, now)
					}
					count++
					if !yield(*l, err) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		span.Set(telemetry.AttrLocks.Int(count))
		span.EndWith(err)
		if err != nil {
			yield(format.Lock{}, err)
		}
	}
}

// Resolve resolves one lock. The status of its transaction's primary decides: if the
// transaction is committed or rolled back, Resolve rolls the cell forward or back.
// If the owner is dead, it rolls back the primary first. If the owner is alive, it
// leaves the lock, and the State is StateLocked, or StateUnknown if the prewrite of
// the primary may still arrive. To resolve a lock that is gone is harmless. If
// nothing shows the transaction's outcome any more, the State is StateUnknown.
func Resolve(ctx context.Context, client *txn.Client, l format.Lock) (s format.Status, err error) {
	return access.ResolverOf(client).ResolveLock(ctx, l)
}

// ResolveLocks resolves locks as [Resolve] does, many at a time, and finds the outcome of each
// transaction once. It calls each with the index and the status of every lock, one call at a
// time. If ctx ends, locks may be left out.
func ResolveLocks(ctx context.Context, client *txn.Client, locks []format.Lock, each func(i int, s format.Status, err error)) error {
	return access.ResolverOf(client).ResolveLocks(ctx, locks, each)
}

// ResolveTransaction resolves every lock of one transaction in all tables of the
// deployment, as [Resolve] does. It returns the transaction's status, and how many
// locks it resolved or tried to. It stops at the locks of a live owner.
func ResolveTransaction(ctx context.Context, client *txn.Client, primary format.Cell, startTS tso.Timestamp) (s format.Status, locks int, err error) {
	c := access.ResolverOf(client)
	ctx, span := c.Trace.Call(ctx, "resolve transaction", "")
	defer func() {
		span.Set(telemetry.AttrStartTS.Int64(int64(startTS)), telemetry.AttrLocks.Int(locks), telemetry.AttrAction.String(recovery.ActionName(recovery.Outcome{Status: s}, 0)))
		span.EndWith(err)
	}()
	tables, err := c.TableNames(ctx)
	if err != nil {
		return format.Status{}, 0, err
	}
	resolve := func(some []format.Lock) error {
		var failed error
		err := c.ResolveLocks(ctx, some, func(_ int, status format.Status, err error) {
			if locks++; failed == nil && (locks == 1 || s.Final()) {
				s, failed = status, err
			}
		})
		return cmp.Or(failed, err)
	}
	for _, t := range tables {
		var some []format.Lock
		for l, err := range TransactionLocks(ctx, client, t, nil, startTS) {
			if err != nil {
				return s, locks, err
			}
			if some = append(some, l); len(some) == store.MaxPageRows {
				if err := resolve(some); err != nil || !s.Final() {
					return s, locks, err
				}
				some = some[:0]
			}
		}
		if len(some) == 0 {
			continue
		}
		if err := resolve(some); err != nil || !s.Final() {
			return s, locks, err
		}
	}
	if locks == 0 {
		s, err = TransactionStatus(ctx, client, primary, startTS)
	}
	return s, locks, err
}

// TransactionStatus reads the status of the transaction that started at startTS from
// its primary cell. It changes nothing.
func TransactionStatus(ctx context.Context, client *txn.Client, primary format.Cell, startTS tso.Timestamp) (format.Status, error) {
	c := access.ResolverOf(client)
	t, err := c.Table(ctx, primary.Table)
	if err != nil {
		return format.Status{}, err
	}
	return recovery.ReadStatus(ctx, t, primary, startTS)
}

// DeclareDead makes this client treat the owner of a transaction as dead, for [Resolve] and
// [ResolveLocks]: for an owner that hangs, and whose locks block others. A transaction that has
// committed stays committed. If the owner is alive and has not committed, its commit fails with a
// conflict, and txn.Client.Update runs the transaction again.
func DeclareDead(client *txn.Client, startTS tso.Timestamp) {
	access.ResolverOf(client).DeclaredDead.Store(int64(startTS))
}

// OnResolve calls f after each cell that this client rolls forward or back for
// another transaction. f must return quickly, and may be called concurrently. It
// replaces an earlier f; nil removes it.
func OnResolve(client *txn.Client, f func(format.Resolution)) {
	c := access.ResolverOf(client)
	if f == nil {
		c.OnResolve.Store(nil)
		return
	}
	c.OnResolve.Store(&f)
}
