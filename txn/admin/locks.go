package admin

import (
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

// Locks iterates over the locks in rows of a table (nil: all rows), live and
// stranded ones alike, in order of row keys, reading pages. It changes nothing.
//
// A record that cannot be read comes as an error, ErrCorrupt or
// ErrFormatVersion, with a Lock of which only Cell and StartTS are set; the
// iteration goes on behind it if the loop does. After any other error it is
// over.
func Locks(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[format.Lock, error] {
	c := access.Resolver(client)
	return listLocks(ctx, c, table, rs, store.WholeFamily(format.LockFamily))
}

// LocksOf iterates over the locks of one transaction in rows of a table (nil:
// all rows), as Locks does.
func LocksOf(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet, startTS tso.Timestamp) iter.Seq2[format.Lock, error] {
	c := access.Resolver(client)
	return listLocks(ctx, c, table, rs, store.Chain(store.WholeFamily(format.LockFamily), store.At(startTS)))
}

func listLocks(ctx context.Context, c *recovery.Resolver, name string, rs bigtable.RowSet, f bigtable.Filter) iter.Seq2[format.Lock, error] {
	return func(yield func(format.Lock, error) bool) {
		met, now := 0, c.Clock.Now()
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
					met++
					if !yield(*l, err) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		span.Set(telemetry.AttrLocks.Int(met))
		span.EndWith(err)
		if err != nil {
			yield(format.Lock{}, err)
		}
	}
}

// Resolve settles one lock as its transaction's primary decides: it rolls the
// cell forward or back if the transaction is committed, rolled back, or dead,
// in which case the primary is rolled back first. A lock whose owner is alive
// is left alone: the Status is then StateLocked, or StateUnknown where the
// primary's prewrite may still be on the way. Resolving a lock that is gone is
// harmless; where nothing is left that tells its transaction's fate, the Status
// is StateUnknown.
func Resolve(ctx context.Context, client *txn.Client, l format.Lock) (s format.Status, err error) {
	return access.Resolver(client).ResolveLock(ctx, l)
}

// ResolveTransaction settles every lock of one transaction, in all tables of
// the deployment, as Resolve does, and returns the transaction's status and
// how many locks it met.
func ResolveTransaction(ctx context.Context, client *txn.Client, primary format.Cell, startTS tso.Timestamp) (s format.Status, locks int, err error) {
	c := access.Resolver(client)
	ctx, span := c.Trace.Call(ctx, "resolve transaction", "")
	defer func() {
		span.Set(telemetry.AttrStartTS.Int64(int64(startTS)), telemetry.AttrLocks.Int(locks), telemetry.AttrAction.String(recovery.Resolution(recovery.Outcome{Status: s}, 0)))
		span.EndWith(err)
	}()
	tables, err := c.TableNames(ctx)
	if err != nil {
		return format.Status{}, 0, err
	}
	for _, t := range tables {
		for l, err := range LocksOf(ctx, client, t, nil, startTS) {
			if err != nil {
				return s, locks, err
			}
			locks++
			if s, err = Resolve(ctx, client, l); err != nil || !s.Final() {
				return s, locks, err
			}
		}
	}
	if locks == 0 {
		s, err = StatusOf(ctx, client, primary, startTS)
	}
	return s, locks, err
}

// Status reads the outcome of the transaction that started at startTS from its
// primary cell, and changes nothing.
func StatusOf(ctx context.Context, client *txn.Client, primary format.Cell, startTS tso.Timestamp) (format.Status, error) {
	c := access.Resolver(client)
	t, err := c.Table(ctx, primary.Table)
	if err != nil {
		return format.Status{}, err
	}
	return recovery.ReadStatus(ctx, t, primary, startTS)
}

// OnResolve has f called after each cell that this client rolls forward or back on
// behalf of another transaction. f has to return quickly and may be called
// concurrently. nil ends it.
func OnResolve(client *txn.Client, f func(format.Resolution)) {
	c := access.Resolver(client)
	if f == nil {
		c.OnResolve.Store(nil)
		return
	}
	c.OnResolve.Store(&f)
}
