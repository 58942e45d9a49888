package changes

import (
	"context"
	"iter"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Notification is what stands in the notify column of a cell: a hint that its
// observers may have to run (paper §2.4). Only the acknowledgments tell whether
// they have to, see [Txn.Observe].
type Notification struct {
	Cell format.Cell
	// Triggers are the notify cells, oldest first; the newest 128 where there are
	// more. None: only a failure is left over, of a run that others have since
	// done.
	Triggers []format.Trigger
	// Failures holds, by observer, what became of the last run, where that was
	// no success.
	Failures map[string]format.Failure
}

// Notifications iterates over the notifications in rows of a table (nil: all
// rows), in order of row keys, reading pages. It changes nothing and looks at
// no acknowledgment.
//
// What does not parse is left out, so that one broken cell does not hide the
// others: Check reports it.
//
// It reads the notify family alone, but Bigtable may have to pass over all of a
// row's families to find it: bound rs.
func Notifications(ctx context.Context, client *txn.Client, name string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := access.Resolver(client)
	return eachNotification(ctx, c, name, rs, bigtable.BlockAllFilter(), nil)
}

// Sweep iterates over the notifications in rows of a table as Notifications
// does, and sees to those that clients have left unset: where a client died
// after its commit point, the change of a secondary stands in nothing but a
// lock, until somebody reads the cell. Sweep settles the locks of observed
// columns that are past their ttl, and yields what it has rolled forward.
func Sweep(ctx context.Context, client *txn.Client, name string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := access.Resolver(client)
	return eachNotification(ctx, c, name, rs, store.WholeFamily(format.LockFamily), resolveStranded)
}

func eachNotification(ctx context.Context, c *recovery.Resolver, name string, rs bigtable.RowSet, also bigtable.Filter, settle func(context.Context, *recovery.Resolver, *store.Table, bigtable.Row) []Notification) iter.Seq2[Notification, error] {
	return func(yield func(Notification, error) bool) {
		filter := func(*store.Table) bigtable.Filter {
			return store.Interleave(store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.LatestNFilter(format.MaxTriggers)), also)
		}
		err := c.Pages(ctx, name, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				found, err := notificationsOf(t, raw)
				if err != nil {
					return false, err
				}
				if settle != nil {
					found = append(found, settle(ctx, c, t, raw)...)
				}
				for _, n := range found {
					if !yield(n, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Notification{}, err)
		}
	}
}

// resolveStranded settles the locks of a row's observed columns that are past
// their ttl, as far as this client can tell, and returns the notifications of
// those that were committed. What it cannot settle is left to the next sweep.
func resolveStranded(ctx context.Context, c *recovery.Resolver, t *store.Table, raw bigtable.Row) (found []Notification) {
	for _, item := range raw[format.LockFamily] {
		_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			continue
		}
		l, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		if err != nil || !l.Observed || l.ExpiresTS() > c.Clock.Now() {
			continue
		}
		s, err := c.ResolveLock(ctx, *l)
		switch {
		case err != nil:
			c.Log.DebugContext(ctx, "settling a stranded lock of an observed column failed", "cell", cell, "start_ts", l.StartTS, "error", err)
		case s.State == format.StateCommitted:
			found = append(found, Notification{Cell: cell, Triggers: []format.Trigger{{TS: s.CommitTS, TraceParent: l.TraceParent, Hops: l.Hops}}, Failures: map[string]format.Failure{}})
		}
	}
	return found
}

// notificationsOf sorts a row's notify family out by cell.
func notificationsOf(t *store.Table, raw bigtable.Row) ([]Notification, error) {
	cells := map[format.Column]*Notification{}
	get := func(cell format.Cell) *Notification {
		n := cells[cell.Column()]
		if n == nil {
			n = &Notification{Cell: cell, Failures: map[string]format.Failure{}}
			cells[cell.Column()] = n
		}
		return n
	}
	for _, item := range raw[format.NotifyFamily] {
		if format.IsFailure(item) {
			cell, observer, err := format.FailureCell(t.Name, raw.Key(), item)
			if err != nil {
				continue
			}
			n := get(cell)
			if f, err := format.DecodeFailure(cell, item.Value); err == nil {
				n.Failures[observer] = f
			}
			continue
		}
		_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			continue
		}
		n := get(cell)
		n.Triggers = append(n.Triggers, format.DecodeTrigger(tso.FromCell(item.Timestamp), item.Value))
	}
	var found []Notification
	for _, n := range cells {
		slices.Reverse(n.Triggers) // Bigtable returns the newest first
		found = append(found, *n)
	}
	slices.SortFunc(found, func(a, b Notification) int {
		return strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key())
	})
	return found, nil
}

// Notify sets the notify cells of cells whose columns are observed, outside of
// any transaction: their observers look again. On a column for weak
// notifications each runs; on another, those run that have not acknowledged the
// cell's newest change, for example because they were registered after it. On
// an error some may be set.
func Notify(ctx context.Context, client *txn.Client, cells ...format.Cell) error {
	c := access.Resolver(client)
	if len(cells) == 0 {
		return nil
	}
	for _, cell := range cells {
		if err := store.CheckNotifiable(ctx, c.Store, cell, false); err != nil {
			return err
		}
	}
	ts, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if err := store.WriteNotifications(ctx, c.Store, cells, ts, format.EncodeTrigger(format.TraceParent(ctx), 0)); err != nil {
		return err
	}
	c.Hints.Hint(cells...)
	return nil
}

// A Cleared says which notifications of a cell have been dealt with.
type Cleared struct {
	Cell format.Cell
	// UpTo: notify cells at or below it are removed. It has to be what
	// [Observation.Known] says of an observation in which every registered observer
	// had acknowledged the cell's newest change.
	UpTo tso.Timestamp
	// Failures of these observers are removed as well.
	Failures []string
}

// ClearNotifications removes notify cells, and failures beside them. It checks
// nothing: to remove a notification that an observer has still to see loses it.
// On an error some may be removed; to remove them again is harmless.
func ClearNotifications(ctx context.Context, client *txn.Client, cleared ...Cleared) error {
	c := access.Resolver(client)
	byTable := map[string][]store.RowMutation{}
	for _, d := range cleared {
		if err := format.CheckCell(d.Cell); err != nil {
			return err
		}
		m := bigtable.NewMutation()
		ops := 0
		if d.UpTo > 0 {
			m.DeleteTimestampRange(format.NotifyFamily, d.Cell.Column().Key(), 0, (d.UpTo + 1).Cell())
			ops++
		}
		for _, observer := range d.Failures {
			m.DeleteCellsInColumn(format.NotifyFamily, format.FailureQualifier(observer, d.Cell.Column()))
			ops++
		}
		if ops > 0 {
			byTable[d.Cell.Table] = append(byTable[d.Cell.Table], store.RowMutation{Row: d.Cell.Row, Mut: m, Ops: ops})
		}
	}
	return c.Mutate(ctx, byTable)
}
