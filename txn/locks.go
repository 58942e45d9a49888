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
func (c *Client) Locks(ctx context.Context, table string, rs bigtable.RowSet) iter.Seq2[Lock, error] {
	return c.locks(ctx, table, rs, wholeFamily(LockFamily))
}

// LocksOf iterates over the locks of one transaction in rows of a table (nil:
// all rows), as Locks does.
func (c *Client) LocksOf(ctx context.Context, table string, rs bigtable.RowSet, startTS tso.Timestamp) iter.Seq2[Lock, error] {
	return c.locks(ctx, table, rs, chain(wholeFamily(LockFamily), at(startTS)))
}

func (c *Client) locks(ctx context.Context, name string, rs bigtable.RowSet, f bigtable.Filter) iter.Seq2[Lock, error] {
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
func (c *Client) Resolve(ctx context.Context, l Lock) (s Status, err error) {
	if err := checkCell(l.Cell); err != nil {
		return Status{}, err
	}
	if err := checkCell(l.Primary); err != nil {
		return Status{}, err
	}
	if err := c.enter(); err != nil {
		return Status{}, err
	}
	defer c.leave()
	ctx, span := c.trace.settle(ctx, &l)
	defer func() {
		span.set(attrAction.String(resolution(outcome{Status: s}, 0)))
		span.end(err)
	}()
	now, err := c.clock.timestamp(ctx)
	if err != nil {
		return Status{}, err
	}
	// The lock may have been listed long ago, and be kept alive since.
	o, err := c.decide(ctx, &l, now, false, waitNever)
	if err != nil || !o.Final() {
		return o.Status, err
	}
	return o.Status, c.finish(ctx, &l, o)
}

// ResolveTransaction settles every lock of one transaction, in all tables of
// the deployment, as Resolve does, and returns the transaction's status and
// how many locks it met.
func (c *Client) ResolveTransaction(ctx context.Context, primary Cell, startTS tso.Timestamp) (s Status, locks int, err error) {
	ctx, span := c.trace.call(ctx, "resolve transaction", "")
	defer func() {
		span.set(attrStartTS.Int64(int64(startTS)), attrLocks.Int(locks), attrAction.String(resolution(outcome{Status: s}, 0)))
		span.end(err)
	}()
	tables, err := c.Tables(ctx)
	if err != nil {
		return Status{}, 0, err
	}
	for _, t := range tables {
		for l, err := range c.LocksOf(ctx, t, nil, startTS) {
			if err != nil {
				return s, locks, err
			}
			locks++
			if s, err = c.Resolve(ctx, l); err != nil || !s.Final() {
				return s, locks, err
			}
		}
	}
	if locks == 0 {
		s, err = c.Status(ctx, primary, startTS)
	}
	return s, locks, err
}

// Status reads the outcome of the transaction that started at startTS from its
// primary cell, and changes nothing.
func (c *Client) Status(ctx context.Context, primary Cell, startTS tso.Timestamp) (Status, error) {
	t, err := c.table(ctx, primary.Table)
	if err != nil {
		return Status{}, err
	}
	return readStatus(ctx, t, primary, startTS)
}
