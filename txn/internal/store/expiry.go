package store

import (
	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// An Expiry says how long the values of a family last. A read at readTS does not show a value
// whose commit_ts plus After is at or below readTS. So what a read shows depends on timestamps
// alone, and two reads at one timestamp agree. The commit_ts of a plain value is its own
// timestamp.
//
// An expired value hides the older versions of its column, as a delete does. They are expired
// as well, because they are older. So garbage collection may remove an expired newest value
// once no read below its expiry is possible any more (docs/design/2026-11-21-expiry.md).
type Expiry struct {
	After tso.Timestamp // in microseconds
	// Since is when it was set. Clients notice it up to Config.SchemaMaxAge later.
	Since tso.Timestamp
}

// Expiries are the expiries of a table by family; mostly none.
type Expiries map[string]Expiry

// Expired reports whether a read at readTS does not show a value of a family any more. commitTS
// is the value's commit_ts, or the timestamp of a plain value.
func (e Expiries) Expired(family string, commitTS, readTS tso.Timestamp) bool {
	until, ok := e.Until(family, commitTS)
	return ok && until <= readTS
}

// Until returns the first timestamp whose reads do not show a value; ok is false if the family
// has no expiry.
func (e Expiries) Until(family string, commitTS tso.Timestamp) (until tso.Timestamp, ok bool) {
	x, ok := e[family]
	return commitTS + x.After, ok
}

// EarliestUntil returns when the first of the values of a row that a read at readTS shows
// expires; 0: none does. It may also return when a value that is hidden expires. The row's
// values have their commit_ts as timestamp.
func (e Expiries) EarliestUntil(row bigtable.Row, readTS tso.Timestamp) (earliest tso.Timestamp) {
	for family := range e {
		for _, item := range row[family] {
			if until, _ := e.Until(family, tso.Timestamp(item.Timestamp)); item.Timestamp < format.PlainBefore && until > readTS && (earliest == 0 || until < earliest) {
				earliest = until
			}
		}
	}
	return earliest
}

// ExpiriesOf returns the expiries of a record.
func ExpiriesOf(m *recordpb.TableSchema) Expiries {
	var e Expiries
	for _, x := range m.Expiries {
		if x.AfterMicros <= 0 {
			continue
		}
		if e == nil {
			e = Expiries{}
		}
		e[x.Family] = Expiry{tso.Timestamp(format.Micros(x.AfterMicros).Microseconds()), tso.Timestamp(x.SinceTs)}
	}
	return e
}
