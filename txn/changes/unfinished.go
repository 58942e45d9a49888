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

// An Unfinished is a cell with work left at a timestamp: a change that was pending
// for an observer, or a lock that may hide one.
type Unfinished struct {
	Cell format.Cell
	// TS is the timestamp of the notify cell or of the lock, or the commit_ts of
	// the acknowledgment.
	TS tso.Timestamp
	// Lock is set if a lock hides whether the cell changed. If it is stranded,
	// admin.Resolve removes it.
	Lock *format.Lock
	// Ran says that an observer has run since. Its writes may be in any row.
	Ran bool
}

// FindUnfinished iterates over the work that was left at asOf in rows of a table
// (nil: all rows). If it finds nothing in any table with observers, then at asOf
// all observers had acknowledged every committed change of their columns, and
// everything that their runs had caused: an observer's writes and its
// acknowledgment are one transaction, so the state at one timestamp has both or
// neither. Dead letters do not count, and neither do notifications of columns that
// have no observer any more.
//
// allLocks also yields the locks of columns that are not observed. For weak
// notifications, read all tables with allLocks first, until there are no locks, and
// then once more: the weak notifications of a transaction are stored before its
// locks are removed.
//
// One read of each row is enough: if a change was committed at or before asOf and
// not acknowledged at asOf, its row has a notify cell, or a lock in place of the
// write record. If it has neither, an observer has run since and its notify cell
// was removed. Then the same row has an acknowledgment with a commit above asOf.
// FindUnfinished reads that, too, and compares it with the row's state at asOf.
func FindUnfinished(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet, asOf tso.Timestamp, allLocks bool) iter.Seq2[Unfinished, error] {
	c := access.ResolverOf(client)
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(
			store.Chain(store.WholeFamily(format.NotifyFamily), store.UpTo(asOf), store.Latest, bigtable.StripValueFilter()),
			store.Chain(store.WholeFamily(format.LockFamily), store.UpTo(asOf)),
			store.Chain(bigtable.ColumnRangeFilter(format.WriteFamily, format.AckFamily+":", format.AckFamily+";"), store.From(asOf+1), store.Latest, bigtable.StripValueFilter()),
		)
	}
	return func(yield func(Unfinished, error) bool) {
		// The cached schema may be old, and the registered observers must be current.
		var s *store.Schema
		t, err := c.Table(ctx, table)
		if err == nil {
			s, err = t.Schema.ReloadObserved(ctx)
		}
		if err != nil {
			yield(Unfinished{}, err)
			return
		}
		err = c.Pages(ctx, table, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
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
		if r, _ := s.Registration(cell.Column()); len(r.Observers) > 0 {
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
		// A weak notification leaves nothing behind that shows whether it was pending.
		was := s.Observed[cell.Column()].Weak
		if !was {
			if was, err = wasPending(ctx, c, t, cell, observer, asOf, tso.FromCell(item.Timestamp)); err != nil {
				return nil, err
			}
		}
		if was {
			found = append(found, Unfinished{Cell: cell, TS: tso.FromCell(item.Timestamp), Ran: true})
		}
	}
	return found, nil
}

// wasPending reports whether a change of a cell was pending for an observer at
// asOf. ranTS is the commit_ts of its run since. If there is still no change then,
// the run was for the replay of a delete that garbage collection has removed.
func wasPending(ctx context.Context, c *recovery.Resolver, t *store.Table, cell format.Cell, observer string, asOf, ranTS tso.Timestamp) (bool, error) {
	var o *Observation
	for _, at := range []tso.Timestamp{asOf, ranTS} {
		o = &Observation{Cell: cell, StartTS: at, Observers: []string{observer}, Acks: map[string]tso.Timestamp{}, Failures: map[string]format.Failure{}}
		_, err := o.read(ctx, c, t)
		if err = c.SafePoint.AfterRead(ctx, at, err); err != nil {
			return false, err
		}
		if at == asOf && o.ChangeTS != 0 {
			return o.Pending(observer), nil
		}
	}
	return o.ChangeTS == 0, nil
}
