package tso

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso/format"
)

// Same compares two states of the row without the bytes of the lease.
func (s RowState) Same(other RowState) bool {
	s.lease, other.lease = format.Lease{}, format.Lease{}
	return s == other
}

// A ReserverState is what a Direct knows of its row.
type ReserverState struct {
	Seen, Known, Shared, ClockBad bool
	Value, High, Took             Timestamp
	Adds                          int
}

// Reserve reserves n timestamps with a Direct that knows this of its row. It returns what it knows then.
func (d *Direct) Reserve(ctx context.Context, s ReserverState, n int64) (Timestamp, ReserverState, error) {
	r := d.res
	r.seen, r.known, r.shared, r.clockBad, r.value, r.high, r.took, r.adds = s.Seen, s.Known, s.Shared, s.ClockBad, s.Value, s.High, s.Took, s.Adds
	last, err := r.reserve(ctx, n)
	return last, ReserverState{r.seen, r.known, r.shared, r.clockBad, r.value, r.high, r.took, r.adds}, err
}
