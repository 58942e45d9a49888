package changes

import (
	"testing"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestKnownChange: entries of transactions are removed up to a change only if its own notification was
// seen. A weak notification is no change of the cell: transactions that started before it may still
// commit.
func TestKnownChange(t *testing.T) {
	for _, c := range []struct {
		weak                 bool
		change, notification tso.Timestamp
		want                 tso.Timestamp
	}{
		{false, 5, 5, 5},
		{false, 5, 9, 5}, // a backfill
		{false, 5, 4, 0}, // its notification is late, or another worker has removed it
		{false, 5, 0, 0},
		{false, 0, 9, 0},
		{true, 9, 9, 0},
	} {
		o := &Observation{Weak: c.weak, ChangeTS: c.change}
		if c.notification != 0 {
			o.Triggers = []format.NotifyCell{{TS: c.notification}}
		}
		if got := o.KnownChange(); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
