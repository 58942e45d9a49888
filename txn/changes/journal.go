package changes

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Journaled reports whether commits of a table's observed columns have journal entries, so that
// [Pending] finds them. It sends nothing if the client has opened the table.
func Journaled(ctx context.Context, client *txn.Client, table string) (bool, error) {
	t, err := access.ResolverOf(client).Table(ctx, table)
	return err == nil && t.Schema.Journaled(), err
}

// Enter writes journal entries of cells that have a notification at ts without one, so that workers find
// them soon: what a late or doubled request, an older release or a restored backup has left.
// Otherwise a sweep finds it within a day.
func Enter(ctx context.Context, client *txn.Client, ts tso.Timestamp, cells ...format.Cell) error {
	return access.ResolverOf(client).Journal.Enter(ctx, journal.Entry{NotifyTS: ts}, cells...)
}

// EnteredRows returns the rows of a table that the journal of pending work names.
func EnteredRows(ctx context.Context, client *txn.Client, table string) (rows bigtable.RowList, err error) {
	err = access.ResolverOf(client).Journal.Read(ctx, []string{table}, journal.Part{Of: 1}, func(page []journal.Entry) bool {
		for _, e := range page {
			if e.Cell.Table == table {
				rows = append(rows, e.Cell.Row)
			}
		}
		return true
	})
	slices.Sort(rows)
	return slices.Compact(rows), err
}

// examineAfter is how old an entry without a notification must be until Pending finds out whether
// its transaction can still commit. Most have been removed by then.
const examineAfter = time.Minute

// forgetAfter is how long a worker examines an entry without a notification, a lock, or another
// proof before it removes the entry.
const forgetAfter = time.Hour

// A Part is a part of the journal of pending work:
//
//	N, Of    int            // its number, from 0, and how many there are
//	Patience time.Duration  // how long a page may take; then tablets are read apart. 0: no bound
//	Apart    bool           // reads them apart from the beginning
type Part = journal.Part

// ErrLate says that [Pending] has left out entries. The next call finds them.
var ErrLate = journal.ErrLate

// Pending iterates over the notifications of the tables that the journal of pending work names,
// as [Sweep] does over those of rows: it also resolves expired locks. Its cost follows the number
// of entries. It reads a part of the journal.
//
// It removes entries whose cells have no notification, once nothing can bring one. If Bigtable
// does not answer for some cells, Pending returns the error with the name of their table
// (Notification.Cell.Table), and continues with the others. If it leaves out entries, because a tablet of
// the journal is later than part.Patience, the last error matches [ErrLate].
func Pending(ctx context.Context, client *txn.Client, tables []string, part Part) iter.Seq2[Notification, error] {
	c := access.ResolverOf(client)
	return func(yield func(Notification, error) bool) {
		s := &journalScan{client: c, yield: yield}
		err := c.Journal.Read(ctx, tables, part, func(page []journal.Entry) bool {
			byTable := map[string][]journal.Entry{}
			for _, e := range page {
				if slices.Contains(tables, e.Cell.Table) {
					byTable[e.Cell.Table] = append(byTable[e.Cell.Table], e)
				}
			}
			for table, entries := range byTable {
				if s.look(ctx, table, entries); s.stopped {
					return false
				}
			}
			return true
		})
		if err != nil {
			yield(Notification{}, err)
		}
	}
}

type journalScan struct {
	client  *recovery.Resolver
	yield   func(Notification, error) bool
	stopped bool

	drained tso.Timestamp // once it is read
}

// look yields the notifications of entries of one table.
func (s *journalScan) look(ctx context.Context, table string, entries []journal.Entry) {
	var rows bigtable.RowList
	for _, e := range entries {
		rows = append(rows, e.Cell.Row)
	}
	busy := map[format.Cell]bool{} // cells with a notification or a lock
	resolve := func(ctx context.Context, c *recovery.Resolver, t *store.Table, raw bigtable.Row) []Notification {
		for _, item := range raw[format.LockFamily] {
			if _, cell, err := format.MetadataCell(t.Name, raw.Key(), item); err == nil {
				busy[cell] = true
			}
		}
		return resolveStranded(ctx, c, t, raw)
	}
	read := func(rows bigtable.RowList) error {
		for n, err := range eachNotification(ctx, s.client, table, rows, store.WholeFamily(format.LockFamily), resolve) {
			if err != nil {
				return err
			}
			busy[n.Cell] = true
			if !s.yield(n, nil) {
				s.stopped = true
				return nil
			}
		}
		return nil
	}
	err := read(rows)
	if err != nil {
		// A tablet that does not answer must not hide the rows of other tablets.
		for _, part := range s.tablets(ctx, table, rows) {
			if e := read(part); s.stopped {
				return
			} else if e != nil {
				err = e
			}
		}
	}
	if err != nil {
		s.fail(table, err)
	}
	if err != nil || s.stopped {
		return
	}
	now := s.client.Clock.Now()
	for _, e := range entries {
		old := e.Newest() < now.Add(-examineAfter)
		if busy[e.Cell] || !old || !s.client.Journal.Examined.Due(e) {
			continue
		}
		if err := s.examine(ctx, e); err != nil {
			s.fail(table, err)
			return
		}
	}
}

// fail yields the error of a table.
func (s *journalScan) fail(table string, err error) {
	s.stopped = !s.yield(Notification{Cell: format.Cell{Table: table}}, err)
}

// tablets divides rows into those of each tablet. It returns none if they are all in one.
func (s *journalScan) tablets(ctx context.Context, table string, rows bigtable.RowList) (parts []bigtable.RowList) {
	t, err := s.client.Table(ctx, table)
	if err != nil {
		return nil
	}
	for _, tablet := range t.Tablets(ctx, store.RowSet{Ranges: []store.KeyRange{{}}}) {
		outside := func(row string) bool { return !tablet.Contains(row) }
		if part := slices.DeleteFunc(slices.Clone(rows), outside); len(part) > 0 {
			parts = append(parts, part)
		}
	}
	if len(parts) == 1 {
		return nil
	}
	return parts
}

// examine removes the entries of a cell that no notification can need any more.
func (s *journalScan) examine(ctx context.Context, e journal.Entry) error {
	c := s.client
	if s.drained == 0 {
		record, _, err := c.SafePoint.ReadRecord(ctx)
		if err != nil {
			return err
		}
		s.drained = max(tso.Timestamp(record.DrainedTs), 1)
	}
	t, err := c.Table(ctx, e.Cell.Table)
	if err != nil {
		return err
	}
	// After the drained safe point: no request of a transaction at or below it arrives any more.
	key := e.Cell.Column().Key()
	newest := func(family string) bigtable.Filter {
		return store.Chain(store.ExactColumn(family, key), store.Latest, bigtable.StripValueFilter())
	}
	read := func() (raw bigtable.Row, busy bool, err error) {
		raw, err = t.TryReadRow(ctx, e.Cell.Row, store.Interleave(newest(format.NotifyFamily), newest(format.LockFamily), newest(format.WriteFamily)))
		return raw, len(raw[format.NotifyFamily]) > 0 || len(raw[format.LockFamily]) > 0, err
	}
	raw, busy, err := read()
	if busy || err != nil {
		return err
	}
	// A transaction that started at or below the newest commit of the cell, and has no lock
	// here, has committed it before or never will. Its notification was in the commit, so a
	// worker has removed it.
	gone := journal.Removal{Cell: e.Cell, StartTS: s.drained, NotifyTS: s.drained, FailureTS: c.Clock.Now().Add(-time.Hour)}
	for _, item := range raw[format.WriteFamily] {
		gone.StartTS = max(gone.StartTS, tso.FromCell(item.Timestamp))
	}
	if covers(gone, e) {
		return c.Journal.Remove(ctx, gone)
	}
	if c.Journal.Examined.Since(e) < forgetAfter {
		c.Journal.Examined.Kept(e)
		return c.Journal.Remove(ctx, gone)
	}
	// Its client has died before it wrote the cell, or it writes the entry again after the cell
	// (journal.Late). Only this transaction's entry: one that began earlier may have come later.
	gone.From, gone.StartTS, gone.NotifyTS = e.StartTS, e.StartTS, max(gone.NotifyTS, e.NotifyTS)
	if err := c.Journal.Remove(ctx, gone); err != nil {
		return err
	}
	if _, busy, err = read(); busy || err != nil {
		// It has written the cell since the first read, and perhaps its entry before the removal.
		return errors.Join(err, c.Journal.Enter(ctx, journal.Entry{NotifyTS: e.Newest()}, e.Cell))
	}
	return nil
}

// covers reports whether a removal removes all of an entry.
func covers(r journal.Removal, e journal.Entry) bool {
	return r.StartTS >= e.StartTS && r.NotifyTS >= e.NotifyTS && r.FailureTS >= e.FailureTS
}
