package txn

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// WithMaxStaleness lets a snapshot show the state at a timestamp that this client
// has received before, instead of asking the oracle for a new one, as long as
// the request for it was begun less than d ago. The snapshot then costs no
// request, and a read of it one. It shows
//
//   - a consistent state, as every snapshot does: of each transaction all or
//     nothing;
//   - every transaction whose Commit returned, in whatever process, d or longer
//     before the call of Snapshot, and perhaps later ones;
//   - every transaction that this Client committed or settled before the call;
//   - everything that an earlier snapshot or transaction of this Client has
//     shown: time does not go back within a client.
//
// What other clients committed less than d ago may be missing. Where the client
// has no timestamp as young as that, or garbage collection has passed it, the
// oracle is asked as usual. 0 always asks. It cannot be combined with [At].
func WithMaxStaleness(d time.Duration) SnapshotOption {
	return func(o *snapshotOptions) { o.staleness = &d }
}

// snapshotTS returns the present for a snapshot, or what the options accept for
// it.
func (c *Client) snapshotTS(ctx context.Context, o *snapshotOptions) (tso.Timestamp, error) {
	if o.staleness == nil {
		return c.Timestamp(ctx)
	}
	switch d := *o.staleness; {
	case o.past:
		return 0, format.Invalidf("a snapshot with At and WithMaxStaleness; At says exactly which state")
	case d < 0:
		return 0, format.Invalidf("WithMaxStaleness(%v); it has to be positive, or zero to ask the oracle", d)
	}
	ts, ok := c.Clock.Within(*o.staleness)
	// A safe point above it would refuse every read.
	if !ok || ts < c.SafePoint.View.Load().Ts {
		return c.Timestamp(ctx)
	}
	c.Counters.Reused.Add(1)
	c.measure.reads.saved(ctx, "snapshot")
	return ts, nil
}
