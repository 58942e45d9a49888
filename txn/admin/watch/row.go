package watch

import (
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Row is a row with locks or notifications.
type Row struct {
	Locks      []format.Lock
	Unreadable []string // why lock records cannot be read
	Seen       []changes.Observation
	notified   bool
	at         time.Time // when it was read
	seenAt     time.Time // when its notifications were compared with acknowledgments
}

// newRow decodes what the filter returns of a row.
func newRow(table string, r bigtable.Row, at time.Time) *Row {
	k := &Row{at: at, notified: slices.ContainsFunc(r[format.NotifyFamily], func(i bigtable.ReadItem) bool { return !format.IsFailure(i) })}
	type id struct {
		column string
		ts     bigtable.Timestamp
	}
	// The cell without its value may be one of the locks, which comes twice then.
	values := map[id]bigtable.ReadItem{}
	var order []id
	for _, item := range r[format.LockFamily] {
		i := id{item.Column, item.Timestamp}
		old, twice := values[i]
		if !twice {
			order = append(order, i)
		}
		if !twice || len(old.Value) == 0 {
			values[i] = item
		}
	}
	for _, i := range order {
		item := values[i]
		_, cell, err := format.MetadataCell(table, r.Key(), item)
		var l *format.Lock
		if err == nil {
			l, err = format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
		}
		if err != nil {
			k.Unreadable = append(k.Unreadable, err.Error())
			continue
		}
		k.Locks = append(k.Locks, *l)
	}
	return k
}

// Conflicting counts the observers whose last run of a pending change lost a conflict.
func Conflicting(seen changes.Observation) (n int) {
	for id, f := range seen.Failures {
		if seen.Pending(id) && f.ChangeTS == seen.ChangeTS && f.Attempts == 0 && f.Error != "" {
			n++
		}
	}
	return n
}

func (k *Row) empty() bool { return len(k.Locks) == 0 && len(k.Unreadable) == 0 && !k.notified }
