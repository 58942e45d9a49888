package txn

import (
	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// addCommit adds what commits one cell: the record, the notify cell of an
// observed column, and the end of the lock. It is the same for an owner and
// for whoever rolls the cell forward (hazard 13).
func addCommit(m *bigtable.Mutation, l *Lock, commitTS tso.Timestamp) (ops int) {
	key := l.Cell.Column().key()
	family, record := encodeCommit(l.Cell, l.Primary, l.Kind, l.StartTS)
	m.Set(family, key, commitTS.Cell(), record)
	removeCell(m, LockFamily, key, l.StartTS)
	if l.Observed {
		m.Set(NotifyFamily, key, commitTS.Cell(), encodeTrigger(l.TraceParent, l.Hops))
		return 3
	}
	return 2
}

func removeLockAndData(m *bigtable.Mutation, c Column, startTS tso.Timestamp) {
	removeCell(m, LockFamily, c.key(), startTS)
	removeCell(m, c.Family, c.Qualifier, startTS)
}

func removeCell(m *bigtable.Mutation, family, qualifier string, ts tso.Timestamp) {
	m.DeleteTimestampRange(family, qualifier, ts.Cell(), (ts + 1).Cell())
}
