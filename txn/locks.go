package txn

import (
	"context"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// Locks iterates over the locks in rows of a table (nil: all rows), live and
// stranded ones alike, in order of row keys, reading pages. It changes nothing.
//
// A record that cannot be read comes as an error, ErrCorrupt or
// ErrFormatVersion, with a Lock of which only Cell and StartTS are set; the
// iteration goes on behind it if the loop does. After any other error it is
// over.
func Locks(ctx context.Context, client *Client, table string, rs bigtable.RowSet) iter.Seq2[Lock, error] {
	c := resolverOf(client)
	return listLocks(ctx, c, table, rs, wholeFamily(LockFamily))
}

// LocksOf iterates over the locks of one transaction in rows of a table (nil:
// all rows), as Locks does.
func LocksOf(ctx context.Context, client *Client, table string, rs bigtable.RowSet, startTS tso.Timestamp) iter.Seq2[Lock, error] {
	c := resolverOf(client)
	return listLocks(ctx, c, table, rs, chain(wholeFamily(LockFamily), at(startTS)))
}

func listLocks(ctx context.Context, c *resolver, name string, rs bigtable.RowSet, f bigtable.Filter) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		met, now := 0, c.clock.now()
		ctx, span := c.trace.call(ctx, "list locks", name)
		err := c.pages(ctx, name, rs, func(*table) bigtable.Filter { return interleave(f) }, func(t *table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				for _, item := range raw[LockFamily] {
					ts := tso.FromCell(item.Timestamp)
					_, cell, err := metadataCell(t.name, raw.Key(), item)
					l := &Lock{Cell: cell, StartTS: ts}
					if err != nil {
						l.Cell = Cell{Table: t.name, Row: raw.Key(), Family: LockFamily}
					} else if decoded, derr := decodeLock(cell, ts, item.Value); derr != nil {
						err = derr
					} else {
						l = decoded
						c.metrics.listed(l, now)
					}
					met++
					if !yield(*l, err) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		span.set(attrLocks.Int(met))
		span.end(err)
		if err != nil {
			yield(Lock{}, err)
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
func Resolve(ctx context.Context, client *Client, l Lock) (s Status, err error) {
	return resolverOf(client).resolveLock(ctx, l)
}

// ResolveTransaction settles every lock of one transaction, in all tables of
// the deployment, as Resolve does, and returns the transaction's status and
// how many locks it met.
func ResolveTransaction(ctx context.Context, client *Client, primary Cell, startTS tso.Timestamp) (s Status, locks int, err error) {
	c := resolverOf(client)
	ctx, span := c.trace.call(ctx, "resolve transaction", "")
	defer func() {
		span.set(attrStartTS.Int64(int64(startTS)), attrLocks.Int(locks), attrAction.String(resolution(outcome{Status: s}, 0)))
		span.end(err)
	}()
	tables, err := c.tableNames(ctx)
	if err != nil {
		return Status{}, 0, err
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
func StatusOf(ctx context.Context, client *Client, primary Cell, startTS tso.Timestamp) (Status, error) {
	c := resolverOf(client)
	t, err := c.table(ctx, primary.Table)
	if err != nil {
		return Status{}, err
	}
	return readStatus(ctx, t, primary, startTS)
}

// OnResolve has f called after each cell that this client rolls forward or back on
// behalf of another transaction. f has to return quickly and may be called
// concurrently. nil ends it.
func OnResolve(client *Client, f func(Resolution)) {
	c := resolverOf(client)
	if f == nil {
		c.onResolve.Store(nil)
		return
	}
	c.onResolve.Store(&f)
}
