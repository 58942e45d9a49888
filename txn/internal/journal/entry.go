package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// The place of entries in the metadata table.
const (
	// RowPrefix is followed by a hash of the table, so that a worker reads only the entries of its
	// own tables, and a hash of the cell. Hashes spread the load over the rows, have one length,
	// and divide the journal into equal parts.
	RowPrefix = "journal/"
	// A transaction's entry is at its start_ts. The commit_ts would not do: it is not known
	// yet, and a reader may raise it.
	txnQualifier = "t"
	// The entry of a notification without a write is at the timestamp of its notify cell:
	// weak notifications, backfills and replays.
	notifyQualifier = "n"
	// The entry of an observer's failure is at the start_ts of the run that failed. Without a
	// notification the failure is only to be removed.
	failureQualifier = "f"
)

// An Entry says which cell may have notifications.
type Entry struct {
	Cell format.Cell
	// StartTS is the newest start_ts of a transaction that writes the cell, and NotifyTS the
	// newest timestamp of a notification without a write. 0: there is none.
	StartTS, NotifyTS tso.Timestamp
	// FailureTS is the start_ts of an observer's run that failed.
	FailureTS tso.Timestamp
}

// SweepRow returns the row of the progress of a table's sweep, in column SweepQualifier.
func SweepRow(table string) string { return "sweep/" + table }

// SweepQualifier is the column of a sweep's progress.
const SweepQualifier = "sweep"

// Newest returns the newest timestamp of the cell's entries.
func (e Entry) Newest() tso.Timestamp { return max(e.StartTS, e.NotifyTS, e.FailureTS) }

// RowKey returns the row of a cell's entries.
func RowKey(c format.Cell) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d %s%s", c.Table, len(c.Row), c.Row, c.Column().Key()))
	return tablePrefix(c.Table) + hex.EncodeToString(sum[:16])
}

// tablePrefix returns the prefix of the rows of a table's cells. Tables with the same hash only
// share their scans.
func tablePrefix(table string) string {
	sum := sha256.Sum256([]byte(table))
	return RowPrefix + hex.EncodeToString(sum[:4]) + "/"
}

// set returns the mutation that writes an entry. It removes an older one of the column; 0: none.
func set(qualifier string, c format.Cell, ts, older tso.Timestamp) store.RowMutation {
	m := store.RowMutation{Row: RowKey(c), Mut: bigtable.NewMutation(), Ops: 1, NameBytes: len(c.Table) + len(c.Row) + len(c.Qualifier)}
	m.Mut.Set(store.DeployFamily, qualifier, ts.Cell(), format.Marshal(&recordpb.JournalEntry{
		FormatVersion: format.Version,
		Table:         c.Table,
		Row:           []byte(c.Row),
		Column:        &recordpb.Column{Family: c.Family, Qualifier: []byte(c.Qualifier)},
	}))
	if older != 0 {
		m.Mut.DeleteTimestampRange(store.DeployFamily, qualifier, older.Cell(), (older + 1).Cell())
		m.Ops++
	}
	return m
}

// A Removal says which entries of a cell to remove.
type Removal struct {
	Cell format.Cell
	// Those of transactions that started in [From, StartTS], and of notifications up to
	// NotifyTS; 0: none.
	From, StartTS, NotifyTS tso.Timestamp
	// Notified, if not nil, are the notifications, in place of all up to NotifyTS.
	Notified []tso.Timestamp
	// Those of failures up to FailureTS.
	FailureTS tso.Timestamp
}

func (r Removal) mutation() (m store.RowMutation, ok bool) {
	m = store.RowMutation{Row: RowKey(r.Cell), Mut: bigtable.NewMutation()}
	if r.StartTS > 0 {
		m.Mut.DeleteTimestampRange(store.DeployFamily, txnQualifier, r.From.Cell(), (r.StartTS + 1).Cell())
		m.Ops++
	}
	for _, ts := range r.Notified {
		m.Mut.DeleteTimestampRange(store.DeployFamily, notifyQualifier, ts.Cell(), (ts + 1).Cell())
		m.Ops++
	}
	if r.NotifyTS > 0 && r.Notified == nil {
		m.Mut.DeleteTimestampRange(store.DeployFamily, notifyQualifier, 0, (r.NotifyTS + 1).Cell())
		m.Ops++
	}
	if r.FailureTS > 0 {
		m.Mut.DeleteTimestampRange(store.DeployFamily, failureQualifier, 0, (r.FailureTS + 1).Cell())
		m.Ops++
	}
	return m, m.Ops > 0
}

// decode reads a row of the journal, of which only the newest cells were read.
func decode(raw bigtable.Row) (e Entry, err error) {
	for _, item := range raw[store.DeployFamily] {
		var m recordpb.JournalEntry
		if err := proto.Unmarshal(item.Value, &m); err != nil {
			return e, fmt.Errorf("percolator: row %q of the journal: %w: it does not parse: %w", raw.Key(), format.ErrCorrupt, err)
		}
		if err := format.CheckVersion(&m, fmt.Sprintf("row %q of the journal", raw.Key())); err != nil {
			return e, fmt.Errorf("percolator: %w", err)
		}
		e.Cell = format.Cell{Table: m.Table, Row: string(m.Row), Family: m.GetColumn().GetFamily(), Qualifier: string(m.GetColumn().GetQualifier())}
		ts := tso.FromCell(item.Timestamp)
		switch strings.TrimPrefix(item.Column, store.DeployFamily+":") {
		case txnQualifier:
			e.StartTS = ts
		case notifyQualifier:
			e.NotifyTS = ts
		default:
			e.FailureTS = ts
		}
	}
	return e, nil
}
