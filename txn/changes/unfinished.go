package changes

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
)

// An Unfinished is something that shows that, as of a timestamp, not every
// change was acknowledged by all observers of its column, or that it cannot be
// told yet.
type Unfinished struct {
	Cell format.Cell
	// TS of the notify cell, the lock, or the acknowledgment's commit.
	TS tso.Timestamp
	// Lock is set where a lock hides what becomes of the cell. It may be
	// stranded: see [Client.Resolve].
	Lock *format.Lock
	// Ran: an observer has run since; what it caused may be anywhere.
	Ran bool
}

// Unfinished iterates over what was not finished as of asOf in rows of a table
// (nil: all rows). If it finds nothing in any table with observers, then at
// asOf every committed change had been acknowledged by all observers of its
// column, together with everything that their runs had caused: an observer's
// writes and its acknowledgment are one transaction, so the state at one
// timestamp has both or neither. Dead letters do not count, nor do notifications
// of columns that have no observer any more.
//
// allLocks counts the locks of all columns, not just those of observed columns
// and acknowledgments. Weak notifications need a first pass with it, through
// all tables, before the pass that counts: what a transaction that was under
// way has notified is there once its locks are gone.
//
// Why one look at each row is enough: a change that is committed at or before
// asOf and not acknowledged as of asOf has its notify cell in its row, or a lock
// in the place of its write record. If neither is there, somebody has run the
// observer and removed the notify cell, and the acknowledgment in the same row
// has a commit above asOf; that is looked for too, and judged by what the row
// held as of asOf.
func FindUnfinished(ctx context.Context, client *txn.Client, name string, rs bigtable.RowSet, asOf tso.Timestamp, allLocks bool) iter.Seq2[Unfinished, error] {
	c := access.Resolver(client)
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(
			store.Chain(store.WholeFamily(format.NotifyFamily), store.UpTo(asOf), store.Latest, bigtable.StripValueFilter()),
			store.Chain(store.WholeFamily(format.LockFamily), store.UpTo(asOf)),
			store.Chain(bigtable.ColumnRangeFilter(format.WriteFamily, format.AckFamily+":", format.AckFamily+";"), store.From(asOf+1), store.Latest, bigtable.StripValueFilter()),
		)
	}
	return func(yield func(Unfinished, error) bool) {
		// Which columns are for weak notifications, and which are observed at all,
		// has to be known as of now.
		var s *store.Schema
		t, err := c.Table(ctx, name)
		if err == nil {
			s, err = t.Schema.ReloadObserved(ctx)
		}
		if err != nil {
			yield(Unfinished{}, err)
			return
		}
		err = c.Pages(ctx, name, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				found, err := unfinishedRow(ctx, c, t, s, raw, asOf, allLocks)
				if err != nil {
					return false, err
				}
				for _, u := range found {
					if !yield(u, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Unfinished{}, err)
		}
	}
}

func unfinishedRow(ctx context.Context, c *recovery.Resolver, t *store.Table, s *store.Schema, raw bigtable.Row, asOf tso.Timestamp, allLocks bool) (found []Unfinished, err error) {
	for _, item := range raw[format.NotifyFamily] {
		if format.IsFailure(item) {
			continue
		}
		_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			return nil, err
		}
		if len(s.Observed[cell.Column()].Observers) > 0 {
			found = append(found, Unfinished{Cell: cell, TS: tso.FromCell(item.Timestamp)})
		}
	}
	for _, item := range raw[format.LockFamily] {
		_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			return nil, err
		}
		l, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		if err != nil {
			return nil, err
		}
		if allLocks || l.Observed || cell.Family == format.AckFamily {
			found = append(found, Unfinished{Cell: cell, TS: l.StartTS, Lock: l})
		}
	}
	for _, item := range raw[format.WriteFamily] {
		ack, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			return nil, err
		}
		col, observer, ok := format.ObserverOf(ack)
		if !ok {
			return nil, format.Corruptf(cell, "the column is in family %s and names no observer", format.AckFamily)
		}
		cell.Family, cell.Qualifier = col.Family, col.Qualifier
		// Of a weak notification nothing is left when it has been dealt with.
		was := s.Observed[cell.Column()].Weak
		if !was {
			if was, err = wasPending(ctx, c, t, cell, observer, asOf); err != nil {
				return nil, err
			}
		}
		if was {
			found = append(found, Unfinished{Cell: cell, TS: tso.FromCell(item.Timestamp), Ran: true})
		}
	}
	return found, nil
}

// wasPending reports whether observer had something to do on a cell as of asOf.
func wasPending(ctx context.Context, c *recovery.Resolver, t *store.Table, cell format.Cell, observer string, asOf tso.Timestamp) (bool, error) {
	o := &Observation{Cell: cell, StartTS: asOf, Observers: []string{observer}, Acks: map[string]tso.Timestamp{}, Failures: map[string]format.Failure{}}
	_, _, err := o.read(ctx, c, t)
	if err = c.SafePoint.AfterRead(ctx, asOf, err); err != nil {
		return false, err
	}
	return o.Pending(observer), nil
}
