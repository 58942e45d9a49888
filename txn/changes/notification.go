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
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Notification says that an observed cell changed, so that its observers may
// have to run (paper §2.4). Only [Observe], which reads their acknowledgments,
// says whether they have to.
type Notification struct {
	Cell format.Cell
	// Triggers are the notify cells, oldest first. If there are more than 128, they
	// are the newest 128. There are none if only a failure is left, of a run that
	// another worker has done since.
	Triggers []format.NotifyCell
	// Failures are the failures of the last runs, by observer.
	Failures map[string]format.Failure
}

// Notifications iterates over the notifications in rows of a table (nil: all
// rows), in order of row keys. It reads page by page, changes nothing, and reads no
// acknowledgments.
//
// It leaves out cells that it cannot parse, so that one damaged cell does not hide
// the others; admin.Check reports them.
//
// It returns the notify family alone, but Bigtable may have to read past all
// families of a row to find it. So limit rs.
func Notifications(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := access.ResolverOf(client)
	return eachNotification(ctx, c, table, rs, bigtable.BlockAllFilter(), nil)
}

// Sweep iterates over the notifications in rows of a table as [Notifications]
// does. It also finds changes without a notification: if a client died after its
// commit point, only a lock shows the change of a secondary, until another client
// reads the cell. Sweep resolves the expired locks of observed columns, and yields
// those changes that it has rolled forward. It does not wait for a part of the data that
// Bigtable does not answer for: it ends with an error, or leaves a lock as it is.
func Sweep(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet) iter.Seq2[Notification, error] {
	c := access.ResolverOf(client)
	return eachNotification(ctx, c, table, rs, store.WholeFamily(format.LockFamily), resolveStranded)
}

func eachNotification(ctx context.Context, c *recovery.Resolver, name string, rs bigtable.RowSet, also bigtable.Filter, resolve func(context.Context, *recovery.Resolver, *store.Table, bigtable.Row) []Notification) iter.Seq2[Notification, error] {
	return func(yield func(Notification, error) bool) {
		filter := func(*store.Table) bigtable.Filter {
			return store.Interleave(store.Chain(store.WholeFamily(format.NotifyFamily), bigtable.LatestNFilter(store.MaxNotifyCells)), also)
		}
		pages := c.Pages
		if resolve != nil {
			pages = c.TryPages
		}
		err := pages(ctx, name, rs, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				found := notificationsOf(t, raw)
				if resolve != nil {
					found = append(found, resolve(ctx, c, t, raw)...)
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

// resolveStranded resolves the expired locks of a row's observed columns, and
// returns the notifications of those that were committed. It leaves a lock that it
// cannot resolve to the next sweep.
func resolveStranded(ctx context.Context, c *recovery.Resolver, t *store.Table, raw bigtable.Row) (found []Notification) {
	for _, item := range raw[format.LockFamily] {
		_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
		if err != nil {
			continue
		}
		l, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		if err != nil || !l.Observed || !l.Expired(c.Clock.Now()) {
			continue
		}
		rctx, cancel := t.Timeout(ctx)
		s, err := c.ResolveLock(rctx, *l)
		cancel()
		switch {
		case err != nil:
			c.Log.DebugContext(ctx, "resolving a stranded lock of an observed column failed", "cell", cell, "start_ts", l.StartTS, "error", err)
		case s.State == format.StateCommitted:
			found = append(found, Notification{Cell: cell, Triggers: []format.NotifyCell{{TS: s.CommitTS, TraceParent: l.TraceParent, Hops: l.Hops}}, Failures: map[string]format.Failure{}})
		}
	}
	return found
}

// notificationsOf returns the notifications of a row, in order of columns.
func notificationsOf(t *store.Table, raw bigtable.Row) (found []Notification) {
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
		} else if _, cell, err := format.MetadataCell(t.Name, raw.Key(), item); err == nil {
			n := get(cell)
			n.Triggers = append(n.Triggers, format.DecodeNotifyCell(tso.FromCell(item.Timestamp), item.Value))
		}
	}
	for _, n := range cells {
		slices.Reverse(n.Triggers) // Bigtable returns the newest first
		found = append(found, *n)
	}
	slices.SortFunc(found, func(a, b Notification) int {
		return strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key())
	})
	return found
}

// Notify sets the notify cells of cells in observed columns, without a
// transaction. If the column is for weak notifications, each of its observers
// runs. Otherwise those observers run that have not acknowledged the cell's newest
// change, for example because they were registered after it. Notify fails with
// txn.ErrSchema if a column has no observer. After an error some notify cells may
// be set.
func Notify(ctx context.Context, client *txn.Client, cells ...format.Cell) error {
	c := access.ResolverOf(client)
	if len(cells) == 0 {
		return nil
	}
	return setNotifications(ctx, c, format.EncodeNotifyCell(format.TraceParent(ctx), 0), cells...)
}

// setNotifications sets the notify cells of cells to value, at a new timestamp.
func setNotifications(ctx context.Context, c *recovery.Resolver, value []byte, cells ...format.Cell) error {
	for _, cell := range cells {
		if err := store.CheckNotifiable(ctx, c.Store, cell, false); err != nil {
			return err
		}
	}
	ts, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	if err := c.Journal.Notify(ctx, cells, ts, value); err != nil {
		return err
	}
	c.Hints.Publish(cells...)
	return nil
}

// A Cleared says which notifications of a cell [ClearNotifications] removes.
type Cleared struct {
	Cell format.Cell
	// UpTo is the newest notify cell to remove, with all older ones. It must be
	// [Observation.KnownUpTo] of an observation in which every registered observer
	// had acknowledged the cell's newest change, and that had seen a notification.
	// 0 removes none.
	UpTo tso.Timestamp
	// Only, if not nil, are the notify cells to remove, in place of all up to UpTo. It must be
	// [Observation.Replays] of an observation.
	Only []tso.Timestamp
	// ChangeTS is a change of the cell that all of these observations have seen: at most the
	// oldest of their newest ones. The journal entries of the transactions that started up to
	// there are removed; 0: none.
	ChangeTS tso.Timestamp
	// Failures are the observers whose failures on the cell are removed, too.
	Failures []string
	// FailedTS is the newest start_ts of the runs that failed; 0: their journal entries stay,
	// and a scan removes them later.
	FailedTS tso.Timestamp
}

// ClearNotifications removes notify cells, and failures. It checks nothing: if an
// observer has not seen a notification yet, removing it loses the change for that
// observer. After an error some may be removed; to remove them again is harmless.
func ClearNotifications(ctx context.Context, client *txn.Client, cleared ...Cleared) error {
	c := access.ResolverOf(client)
	byTable := map[string][]store.RowMutation{}
	var entries []journal.Removal
	for _, d := range cleared {
		if err := format.CheckCell(d.Cell); err != nil {
			return err
		}
		m := bigtable.NewMutation()
		ops := 0
		for _, ts := range d.Only {
			m.DeleteTimestampRange(format.NotifyFamily, d.Cell.Column().Key(), ts.Cell(), (ts + 1).Cell())
			ops++
		}
		if d.UpTo > 0 && d.Only == nil {
			m.DeleteTimestampRange(format.NotifyFamily, d.Cell.Column().Key(), 0, (d.UpTo + 1).Cell())
			ops++
		}
		for _, observer := range d.Failures {
			m.DeleteCellsInColumn(format.NotifyFamily, format.FailureQualifier(observer, d.Cell.Column()))
			ops++
		}
		t, err := c.Table(ctx, d.Cell.Table)
		if err != nil {
			return err
		}
		if t.Schema.Journaled() {
			e := journal.Removal{Cell: d.Cell, NotifyTS: d.UpTo, Notified: d.Only, FailureTS: d.FailedTS}
			if d.UpTo > 0 {
				e.StartTS = d.ChangeTS
			}
			entries = append(entries, e)
		}
		if ops > 0 {
			byTable[d.Cell.Table] = append(byTable[d.Cell.Table], store.RowMutation{Row: d.Cell.Row, Mut: m, Ops: ops})
		}
	}
	// The entries last: without them nobody would find what is left of the notifications.
	if err := c.Mutate(ctx, byTable); err != nil {
		return err
	}
	return c.Journal.Remove(ctx, entries...)
}
