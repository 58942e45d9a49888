package store

import (
	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// AddCommit adds the changes that commit one cell: they write the record, set the notify cell
// of an observed column, and remove the lock. ops is their number. An owner and a client that
// rolls the cell forward send the same changes (hazard 13), except that only the owner knows
// format.WriteRecord.SettledBy; others send 0.
func AddCommit(m *bigtable.Mutation, l *format.Lock, commitTS tso.Timestamp, settledBy uint64) (ops int) {
	key := l.Cell.Column().Key()
	family, record := format.WriteRecord{StartTS: l.StartTS, Kind: l.Kind, Primary: l.Primary, SettledBy: settledBy}.Encode(l.Cell)
	m.Set(family, key, commitTS.Cell(), record)
	RemoveCell(m, format.LockFamily, key, l.StartTS)
	if l.Observed {
		m.Set(format.NotifyFamily, key, commitTS.Cell(), format.EncodeNotifyCell(l.TraceParent, l.Hops))
		return 3
	}
	return 2
}

// RemoveLockAndData adds the changes that roll one cell back.
func RemoveLockAndData(m *bigtable.Mutation, c format.Column, startTS tso.Timestamp) {
	RemoveCell(m, format.LockFamily, c.Key(), startTS)
	RemoveCell(m, c.Family, c.Qualifier, startTS)
}

// RemoveCell adds the change that removes one cell at exactly ts.
func RemoveCell(m *bigtable.Mutation, family, qualifier string, ts tso.Timestamp) {
	m.DeleteTimestampRange(family, qualifier, ts.Cell(), (ts + 1).Cell())
}
