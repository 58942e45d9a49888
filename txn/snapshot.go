package txn

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// A Snapshot reads a consistent state of all tables at one timestamp. It holds nothing in
// Bigtable and needs no end, unless it was taken with [Hold]. Once garbage collection has
// passed it, its reads fail with ErrTooOld. Its methods may be called concurrently.
type Snapshot struct {
	client *Client
	// ts is the timestamp of the snapshot's state. It reads at readAt, which is the same, or
	// the one below: no transaction commits at a start timestamp.
	ts, readAt tso.Timestamp

	hold  *recovery.Hold // nil without Hold
	reads *reads
}

// newSnapshot does the work of Client.Snapshot.
func newSnapshot(ctx context.Context, c *Client, opts []SnapshotOption) (*Snapshot, error) {
	if err := c.resolver.Enter(); err != nil {
		return nil, err
	}
	defer c.resolver.Leave()
	var o snapshotOptions
	for _, opt := range opts {
		opt.applySnapshot(&o)
	}
	now, readAt, err := snapshotTimestamp(ctx, c, &o)
	if err != nil {
		return nil, err
	}
	switch {
	case !o.past:
		o.at = now
	case o.at <= 0:
		return nil, format.Invalidf("snapshot at %d; a timestamp is a positive number of microseconds since 1970", o.at)
	case o.at > now:
		// At a later timestamp, reads would not be repeatable.
		return nil, format.Invalidf("snapshot at %d (%s), which is later than the oracle's time, %d (%s)", o.at, o.at.Time().Format(time.RFC3339Nano), now, now.Time().Format(time.RFC3339Nano))
	}
	if o.past {
		readAt = o.at
	}
	s := &Snapshot{client: c, ts: o.at, readAt: readAt}
	if shared := new(reads); shared.init(&c.reads, o.name, o.prefetch) {
		s.reads = shared
	}
	if o.hold {
		s.hold = c.resolver.Holds.Add(s.readAt, false)
		if err := c.resolver.Token.Publish(ctx); err != nil {
			s.Release()
			return nil, err
		}
	}
	if o.past || o.staleness != nil && o.hold {
		if err := c.resolver.SafePoint.CheckRead(ctx, s.readAt); err != nil {
			s.Release()
			return nil, err
		}
	}
	return s, nil
}

// Release ends the hold of a snapshot that was taken with [Hold], and does nothing
// otherwise. Reads of the snapshot still work as long as its versions are kept.
func (s *Snapshot) Release() { s.client.resolver.Holds.Remove(s.hold) }

// ReadTS returns the timestamp whose state the snapshot shows. It is never below an earlier
// timestamp that the client gave to a transaction, or to a snapshot of the present.
func (s *Snapshot) ReadTS() tso.Timestamp { return s.ts }

// Table returns the snapshot's view of a table. The first read opens the table and checks its
// schema.
func (s *Snapshot) Table(name string) *View {
	return &View{client: s.client, name: name, ts: s.readAt, reads: s.reads}
}

// snapshotTimestamp returns the timestamp of now, a new one or an earlier one that
// MaxStaleness allows, and the timestamp at which reads show its state.
func snapshotTimestamp(ctx context.Context, c *Client, o *snapshotOptions) (ts, readAt tso.Timestamp, err error) {
	if seen := c.resolver.Clock.Newest(); o.past && o.staleness == nil && o.at <= seen {
		return seen, seen, nil // At replaces it
	}
	if o.staleness == nil {
		ts, err = c.Timestamp(ctx)
		return ts, ts, err
	}
	switch d := *o.staleness; {
	case o.past:
		return 0, 0, format.Invalidf("a snapshot with At and MaxStaleness; At says exactly which state")
	case d < 0:
		return 0, 0, format.Invalidf("MaxStaleness(%v); it has to be positive, or zero to ask the oracle", d)
	}
	ts, readAt, ok := c.resolver.Clock.ReadableWithin(*o.staleness)
	// If garbage collection has passed it, every read would fail.
	if !ok || c.resolver.SafePoint.CheckRead(ctx, readAt) != nil {
		ts, err = c.Timestamp(ctx)
		return ts, ts, err
	}
	c.resolver.Counters.Reused.Add(1)
	c.reads.metrics.TimestampReused(ctx, "snapshot")
	return ts, readAt, nil
}
