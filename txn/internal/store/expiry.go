package store

import (
	"slices"

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
// once no read below its expiry is possible any more (docs/design/expiry.md).
type Expiry struct {
	After tso.Timestamp // in microseconds; 0: values last without limit
	// Since is when it was set. Clients notice it up to Config.SchemaMaxAge later.
	Since tso.Timestamp
	// Gone is the largest commit_ts of the values that no read shows, whatever After is now:
	// garbage collection may have removed them by an earlier expiry. GoneSince is when that was
	// recorded.
	Gone, GoneSince tso.Timestamp
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
	switch x := e[family]; {
	case 0 < x.Gone && commitTS <= x.Gone:
		return x.Gone, true
	case x.After > 0:
		return commitTS + x.After, true
	}
	return 0, false
}

// ExpiredUpTo returns the largest commit_ts of the values of a family that no read shows that is
// still possible. drained is a drained safe point (see [Drained]): these reads are above it, and all
// clients know what was recorded before it.
func (e Expiries) ExpiredUpTo(family string, drained tso.Timestamp) (expired tso.Timestamp) {
	x := e[family]
	if x.After > 0 && x.Since <= drained {
		expired = drained - x.After
	}
	if x.GoneSince <= drained {
		expired = max(expired, x.Gone)
	}
	return expired
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
	if len(m.Expiries)+len(m.Expired) == 0 {
		return nil
	}
	e := Expiries{}
	for _, x := range m.Expiries {
		if x.AfterMicros > 0 {
			e[x.Family] = Expiry{After: tso.Timestamp(format.Micros(x.AfterMicros).Microseconds()), Since: tso.Timestamp(x.SinceTs)}
		}
	}
	for _, x := range m.Expired {
		y := e[x.Family]
		y.Gone, y.GoneSince = tso.Timestamp(x.CommitTs), tso.Timestamp(x.SinceTs)
		e[x.Family] = y
	}
	return e
}

// EndExpiry removes the expiry of a family from a record. A collector that has read the record before
// may remove values by that expiry, however late its requests arrive. So what it may remove stays
// expired. point is the safe point as stored now: no collector works with a later drained one.
func EndExpiry(m *recordpb.TableSchema, family string, point *recordpb.SafePoint, now tso.Timestamp) {
	old, ok := ExpiriesOf(m)[family]
	if !ok || old.After == 0 {
		return
	}
	m.Expiries = slices.DeleteFunc(m.Expiries, func(x *recordpb.FamilyExpiry) bool { return x.Family == family })
	latest := tso.Timestamp(max(point.DrainedTs, point.DrainingTs))
	if gone := latest - old.After; old.Since <= latest && gone > old.Gone {
		m.Expired = slices.DeleteFunc(m.Expired, func(x *recordpb.FamilyExpired) bool { return x.Family == family })
		m.Expired = append(m.Expired, &recordpb.FamilyExpired{Family: family, CommitTs: int64(gone), SinceTs: int64(now)})
	}
}
