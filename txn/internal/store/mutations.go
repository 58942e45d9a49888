package store

import (
	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// AddCommit adds what commits one cell: the record, the notify cell of an
// observed column, and the end of the lock. It is the same for an owner and
// for whoever rolls the cell forward (hazard 13).
func AddCommit(m *bigtable.Mutation, l *format.Lock, commitTS tso.Timestamp) (ops int) {
	key := l.Cell.Column().Key()
	family, record := format.EncodeCommit(l.Cell, l.Primary, l.Kind, l.StartTS)
	m.Set(family, key, commitTS.Cell(), record)
	RemoveCell(m, format.LockFamily, key, l.StartTS)
	if l.Observed {
		m.Set(format.NotifyFamily, key, commitTS.Cell(), format.EncodeNotifyCell(l.TraceParent, l.Hops))
		return 3
	}
	return 2
}

func RemoveLockAndData(m *bigtable.Mutation, c format.Column, startTS tso.Timestamp) {
	RemoveCell(m, format.LockFamily, c.Key(), startTS)
	RemoveCell(m, c.Family, c.Qualifier, startTS)
}

func RemoveCell(m *bigtable.Mutation, family, qualifier string, ts tso.Timestamp) {
	m.DeleteTimestampRange(family, qualifier, ts.Cell(), (ts + 1).Cell())
}
