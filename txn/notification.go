package txn

import (
	"context"
	"iter"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// A Notification is what stands in the notify column of a cell: a hint that its
// observers may have to run (paper §2.4). Only the acknowledgments tell whether
// they have to, see [Txn.Observe].
type Notification struct {
	Cell Cell
	// Triggers are the notify cells, oldest first; the newest 128 where there are
	// more. None: only a failure is left over, of a run that others have since
	// done.
	Triggers []Trigger
	// Failures holds, by observer, what became of the last run, where that was
	// no success.
	Failures map[string]Failure
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
func Notifications(ctx context.Context, client *Client, name string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := resolverOf(client)
	return eachNotification(ctx, c, name, rs, bigtable.BlockAllFilter(), nil)
}

// Sweep iterates over the notifications in rows of a table as Notifications
// does, and sees to those that clients have left unset: where a client died
// after its commit point, the change of a secondary stands in nothing but a
// lock, until somebody reads the cell. Sweep settles the locks of observed
// columns that are past their ttl, and yields what it has rolled forward.
func Sweep(ctx context.Context, client *Client, name string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := resolverOf(client)
	return eachNotification(ctx, c, name, rs, wholeFamily(LockFamily), settleStranded)
}

func eachNotification(ctx context.Context, c *resolver, name string, rs bigtable.RowSet, also bigtable.Filter, settle func(context.Context, *resolver, *table, bigtable.Row) []Notification) iter.Seq2[Notification, error] {
	return func(yield func(Notification, error) bool) {
		filter := func(*table) bigtable.Filter {
			return interleave(chain(wholeFamily(NotifyFamily), bigtable.LatestNFilter(maxTriggers)), also)
		}
		err := c.pages(ctx, name, rs, filter, func(t *table, page []bigtable.Row) (bool, error) {
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

// settleStranded settles the locks of a row's observed columns that are past
// their ttl, as far as this client can tell, and returns the notifications of
// those that were committed. What it cannot settle is left to the next sweep.
func settleStranded(ctx context.Context, c *resolver, t *table, raw bigtable.Row) (found []Notification) {
	for _, item := range raw[LockFamily] {
		_, cell, err := metadataCell(t.name, raw.Key(), item)
		if err != nil {
			continue
		}
		l, err := decodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		if err != nil || !l.Observed || l.ExpiresTS() > c.clock.now() {
			continue
		}
		s, err := c.resolveLock(ctx, *l)
		switch {
		case err != nil:
			c.log.DebugContext(ctx, "settling a stranded lock of an observed column failed", "cell", cell, "start_ts", l.StartTS, "error", err)
		case s.State == StateCommitted:
			found = append(found, Notification{Cell: cell, Triggers: []Trigger{{TS: s.CommitTS, TraceParent: l.TraceParent, Hops: l.Hops}}, Failures: map[string]Failure{}})
		}
	}
	return found
}

// notificationsOf sorts a row's notify family out by cell.
func notificationsOf(t *table, raw bigtable.Row) ([]Notification, error) {
	cells := map[Column]*Notification{}
	get := func(cell Cell) *Notification {
		n := cells[cell.Column()]
		if n == nil {
			n = &Notification{Cell: cell, Failures: map[string]Failure{}}
			cells[cell.Column()] = n
		}
		return n
	}
	for _, item := range raw[NotifyFamily] {
		if isFailure(item) {
			cell, observer, err := failureCell(t.name, raw.Key(), item)
			if err != nil {
				continue
			}
			n := get(cell)
			if f, err := decodeFailure(cell, item.Value); err == nil {
				n.Failures[observer] = f
			}
			continue
		}
		_, cell, err := metadataCell(t.name, raw.Key(), item)
		if err != nil {
			continue
		}
		n := get(cell)
		n.Triggers = append(n.Triggers, decodeTrigger(tso.FromCell(item.Timestamp), item.Value))
	}
	var found []Notification
	for _, n := range cells {
		slices.Reverse(n.Triggers) // Bigtable returns the newest first
		found = append(found, *n)
	}
	slices.SortFunc(found, func(a, b Notification) int {
		return strings.Compare(a.Cell.Column().key(), b.Cell.Column().key())
	})
	return found, nil
}

// Notify sets the notify cells of cells whose columns are observed, outside of
// any transaction: their observers look again. On a column for weak
// notifications each runs; on another, those run that have not acknowledged the
// cell's newest change, for example because they were registered after it. On
// an error some may be set.
func Notify(ctx context.Context, client *Client, cells ...Cell) error {
	c := resolverOf(client)
	if len(cells) == 0 {
		return nil
	}
	for _, cell := range cells {
		if err := checkNotifiable(ctx, c.store, cell, false); err != nil {
			return err
		}
	}
	ts, err := c.clock.timestamp(ctx)
	if err != nil {
		return err
	}
	if err := writeNotifications(ctx, c.store, cells, ts, encodeTrigger(traceParent(ctx), 0)); err != nil {
		return err
	}
	c.hints.hint(cells...)
	return nil
}

// A Cleared says which notifications of a cell have been dealt with.
type Cleared struct {
	Cell Cell
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
func ClearNotifications(ctx context.Context, client *Client, cleared ...Cleared) error {
	c := resolverOf(client)
	byTable := map[string][]rowMutation{}
	for _, d := range cleared {
		if err := checkCell(d.Cell); err != nil {
			return err
		}
		m := bigtable.NewMutation()
		ops := 0
		if d.UpTo > 0 {
			m.DeleteTimestampRange(NotifyFamily, d.Cell.Column().key(), 0, (d.UpTo + 1).Cell())
			ops++
		}
		for _, observer := range d.Failures {
			m.DeleteCellsInColumn(NotifyFamily, failureQualifier(observer, d.Cell.Column()))
			ops++
		}
		if ops > 0 {
			byTable[d.Cell.Table] = append(byTable[d.Cell.Table], rowMutation{row: d.Cell.Row, mut: m, ops: ops})
		}
	}
	return c.mutate(ctx, byTable)
}
