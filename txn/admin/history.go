package admin

import (
	"cmp"
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

// A VersionKind says what a stored cell is.
type VersionKind string

// The kinds of stored cells (docs/storage-format.md).
const (
	// VersionPlain: data from before the table's adoption, or of a plain writer. It
	// counts as committed before every transaction.
	VersionPlain VersionKind = "plain data"
	// VersionData: the value that a transaction put, at its start_ts. A lock or a
	// write record shows the transaction's outcome.
	VersionData VersionKind = "data"
	// VersionLock: a write of a transaction that has not ended, at start_ts.
	VersionLock VersionKind = "lock"
	// VersionWrite: a committed put or delete, at commit_ts.
	VersionWrite VersionKind = "write"
	// VersionLockOnly: a mark at commit_ts, of a committed lock-only write.
	VersionLockOnly VersionKind = "lock-only commit"
	// VersionRollback: a rollback marker at start_ts. The transaction never commits.
	VersionRollback VersionKind = "rollback"
	// VersionNotify: the notify cell that a commit of an observed column set,
	// at commit_ts.
	VersionNotify VersionKind = "notify"
	// VersionFailure: an observer's last run failed. Failure and Observer say more.
	// Its timestamp is 0.
	VersionFailure VersionKind = "failure"
	// VersionUnreadable: a cell in a metadata family that cannot be read. Err says
	// why.
	VersionUnreadable VersionKind = "unreadable"
)

// A Version is one stored cell of a row, and what it means.
type Version struct {
	Kind VersionKind
	// Cell is the cell that the version belongs to. In the acknowledgment family its
	// qualifier is family:qualifier/observer.
	Cell format.Cell
	// Family is where the version is stored: a metadata family, or Cell.Family for
	// data.
	Family string
	// TS is its timestamp. For plain data it is the cell's own, in microseconds.
	TS tso.Timestamp
	// StartTS is that of its transaction; 0 for plain data and notify cells, which
	// do not contain it.
	StartTS tso.Timestamp
	// CommitTS is that of its transaction; 0 if the stored cell does not contain it.
	CommitTS tso.Timestamp
	// Write is what the transaction does to the cell. It is set in locks and records.
	Write format.Kind
	// Primary is the primary of the transaction. It is set in locks and records.
	Primary format.Cell
	// Lock is set in locks.
	Lock *format.Lock
	// Failure and Observer are set in VersionFailure.
	Failure  *format.Failure
	Observer string
	// Value is the data, or a notify cell's trace context.
	Value []byte
	// Err is set in VersionUnreadable.
	Err error
}

// History returns all versions of all cells of a row: plain data first, then the
// others in order of their timestamps. An empty row has none. It reads the row in
// one request, and resolves no lock.
func History(ctx context.Context, client *txn.Client, table, row string) ([]Version, error) {
	return HistorySince(ctx, client, table, row, 0)
}

// HistorySince is [History] without the versions below a timestamp. Locks, notify cells and
// failures of observers are always there. Plain data is left out, unless since is 0.
func HistorySince(ctx context.Context, client *txn.Client, table, row string, since tso.Timestamp) ([]Version, error) {
	t, raw, err := storedRow(ctx, access.ResolverOf(client), table, row, since)
	if err != nil {
		return nil, err
	}
	return versionsOf(t, row, raw), nil
}

// storedRow reads the cells of a row.
func storedRow(ctx context.Context, c *recovery.Resolver, table, row string, since tso.Timestamp) (*store.Table, bigtable.Row, error) {
	if err := format.CheckRowKey(row); err != nil {
		return nil, nil, err
	}
	if err := c.Enter(); err != nil {
		return nil, nil, err
	}
	defer c.Leave()
	t, err := c.Table(ctx, table)
	if err != nil {
		return nil, nil, err
	}
	filters := []bigtable.Filter{store.WholeFamily(format.LockFamily), store.WholeFamily(format.NotifyFamily)}
	for _, f := range append([]string{format.WriteFamily, format.MarkFamily}, t.Schema.Current().Families...) {
		if f := store.WholeFamily(f); since == 0 {
			filters = append(filters, f)
		} else {
			filters = append(filters, store.Chain(f, store.From(since)))
		}
	}
	raw, err := t.ReadRow(ctx, row, store.Interleave(filters...))
	return t, raw, err
}

func versionsOf(t *store.Table, row string, raw bigtable.Row) (all []Version) {
	for family, items := range raw {
		for _, item := range items {
			all = append(all, newVersion(t, row, family, item))
		}
	}
	sortVersions(all)
	return all
}

// TransactionVersions iterates over the stored cells of one transaction in rows of a
// table (nil: all rows), in order of row keys: its locks, data (without values),
// records, marks and notify cells. If its commit_ts is not known, pass 0: then
// TransactionVersions reads every record since startTS, and leaves out notify
// cells, which name no transaction. It resolves no lock.
func TransactionVersions(ctx context.Context, client *txn.Client, table string, rs bigtable.RowSet, startTS, commitTS tso.Timestamp) iter.Seq2[Version, error] {
	c := access.ResolverOf(client)
	return func(yield func(Version, error) bool) {
		err := c.Pages(ctx, table, rs, func(t *store.Table) bigtable.Filter { return transactionFilter(t, startTS, commitTS) }, func(t *store.Table, page []bigtable.Row) (bool, error) {
			for _, raw := range page {
				for _, v := range rowVersions(t, raw, startTS, commitTS) {
					if !yield(v, nil) {
						return false, nil
					}
				}
			}
			return true, nil
		})
		if err != nil {
			yield(Version{}, err)
		}
	}
}

// transactionFilter matches the cells of a transaction: everything at one of its two
// timestamps, which no other transaction has.
func transactionFilter(t *store.Table, startTS, commitTS tso.Timestamp) bigtable.Filter {
	var data []bigtable.Filter
	for _, f := range t.Schema.Current().Families {
		data = append(data, store.WholeFamily(f))
	}
	filters := []bigtable.Filter{
		store.Chain(store.WholeFamily(format.LockFamily), store.At(startTS)),
		store.Chain(store.AnyOf(data), store.At(startTS), bigtable.StripValueFilter()),
	}
	records := store.AnyOf([]bigtable.Filter{store.WholeFamily(format.WriteFamily), store.WholeFamily(format.MarkFamily)})
	if commitTS == 0 {
		return store.Interleave(append(filters, store.Chain(records, store.From(startTS)))...)
	}
	return store.Interleave(append(filters,
		store.Chain(store.WholeFamily(format.MarkFamily), store.At(startTS)),
		store.Chain(records, store.At(commitTS)),
		store.Chain(store.WholeFamily(format.NotifyFamily), store.At(commitTS)),
	)...)
}

func rowVersions(t *store.Table, raw bigtable.Row, startTS, commitTS tso.Timestamp) []Version {
	var found []Version
	for family, items := range raw {
		for _, item := range items {
			v := newVersion(t, raw.Key(), family, item)
			ours := v.StartTS == startTS
			switch v.Kind {
			case VersionNotify:
				ours = v.TS == commitTS
				v.StartTS = startTS
			case VersionUnreadable:
				ours = v.TS == startTS || v.TS == commitTS
			}
			if ours {
				found = append(found, v)
			}
		}
	}
	sortVersions(found)
	return found
}

// newVersion says what a stored cell means.
func newVersion(t *store.Table, row, family string, item bigtable.ReadItem) Version {
	v := Version{Family: family, TS: tso.FromCell(item.Timestamp), Value: item.Value}
	if !format.IsMetadataFamily(family) {
		col, _ := format.SplitColumn(item.Column)
		v.Kind, v.Cell = VersionData, format.Cell{Table: t.Name, Row: row, Family: col.Family, Qualifier: col.Qualifier}
		if item.Timestamp < format.PlainBefore {
			v.Kind, v.TS = VersionPlain, tso.Timestamp(item.Timestamp)
		} else {
			v.StartTS = v.TS
		}
		return v
	}
	if family == format.NotifyFamily && format.IsFailure(item) {
		return newFailureVersion(t, row, v, item)
	}
	_, cell, err := format.MetadataCell(t.Name, row, item)
	if err != nil {
		_, key, _ := strings.Cut(item.Column, ":")
		v.Kind, v.Cell, v.Err = VersionUnreadable, format.Cell{Table: t.Name, Row: row, Family: family, Qualifier: key}, err
		return v
	}
	v.Cell = cell
	switch family {
	case format.NotifyFamily:
		v.Kind, v.CommitTS = VersionNotify, v.TS
		return v
	case format.LockFamily:
		l, e := format.DecodeLock(cell, v.TS, item.Value)
		if err = e; e == nil {
			v.Kind, v.StartTS, v.Write, v.Primary, v.Lock, v.Value = VersionLock, l.StartTS, l.Kind, l.Primary, l, nil
		}
	default:
		decode, kind := format.DecodeWrite, VersionWrite
		if family == format.MarkFamily {
			decode, kind = format.DecodeMark, VersionLockOnly
		}
		w, e := decode(cell, v.TS, item.Value)
		switch err = e; {
		case e != nil:
		case w.Kind == format.KindRollback:
			v.Kind, v.StartTS, v.Value = VersionRollback, w.StartTS, nil
		default:
			v.Kind, v.StartTS, v.CommitTS, v.Write, v.Primary, v.Value = kind, w.StartTS, w.CommitTS, w.Kind, w.Primary, nil
		}
	}
	if err != nil {
		v.Kind, v.Err = VersionUnreadable, err
	}
	return v
}

func newFailureVersion(t *store.Table, row string, v Version, item bigtable.ReadItem) Version {
	var f format.Failure
	cell, observer, err := format.FailureCell(t.Name, row, item)
	if err == nil {
		f, err = format.DecodeFailure(cell, item.Value)
	}
	v.Cell = cell
	if err != nil {
		v.Kind, v.Err = VersionUnreadable, err
		return v
	}
	v.Kind, v.Observer, v.Failure, v.Value = VersionFailure, observer, &f, nil
	return v
}

// sortVersions puts plain data first, then sorts by timestamp, then by column. In a
// column, data is before its lock or record.
func sortVersions(all []Version) {
	slices.SortFunc(all, func(a, b Version) int {
		if (a.Kind == VersionPlain) != (b.Kind == VersionPlain) {
			if a.Kind == VersionPlain {
				return -1
			}
			return 1
		}
		return cmp.Or(
			cmp.Compare(a.TS, b.TS),
			strings.Compare(a.Cell.Column().Key(), b.Cell.Column().Key()),
			cmp.Compare(versionOrder(a.Family), versionOrder(b.Family)),
		)
	})
}

func versionOrder(family string) int {
	return slices.Index([]string{format.LockFamily, format.WriteFamily, format.MarkFamily, format.NotifyFamily}, family)
}
