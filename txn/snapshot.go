package txn

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// A Snapshot reads a consistent state of all tables at one timestamp. It holds
// nothing in Bigtable and needs no end, unless it was taken with [Hold]. Its
// reads fail with ErrTooOld once garbage collection has passed it. Its methods
// may be called concurrently.
type Snapshot struct {
	client *Client
	ts     tso.Timestamp
	hold   *recovery.Hold // nil without Hold
	reads  *reads
}

// Snapshot returns the state as of now, or, with [At], as of an earlier
// timestamp. It sees every transaction that committed before the call, unless
// [WithMaxStaleness] lets it be older. A timestamp that garbage collection has
// passed is refused with ErrTooOld.
func (c *Client) Snapshot(ctx context.Context, opts ...SnapshotOption) (*Snapshot, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	defer c.Leave()
	var o snapshotOptions
	for _, opt := range opts {
		opt(&o)
	}
	now, err := c.snapshotTS(ctx, &o)
	if err != nil {
		return nil, err
	}
	switch {
	case !o.past:
		o.at = now
	case o.at <= 0:
		return nil, format.Invalidf("snapshot at %d; a timestamp is a positive number of microseconds since 1970", o.at)
	case o.at > now:
		// At a timestamp that is yet to come, reads would not be repeatable.
		return nil, format.Invalidf("snapshot at %d (%s), which is after the oracle's present, %d (%s)", o.at, o.at.Time().Format(time.RFC3339Nano), now, now.Time().Format(time.RFC3339Nano))
	}
	s := &Snapshot{client: c, ts: o.at}
	if shared := new(reads); shared.init(c, o.name, o.prefetch) {
		s.reads = shared
	}
	if o.hold {
		s.hold = c.Holds.Add(s.ts)
		if err := c.Token.Publish(ctx); err != nil {
			s.Release()
			return nil, err
		}
	}
	if o.past || o.staleness != nil && o.hold {
		if err := c.SafePoint.CheckRead(ctx, s.ts); err != nil {
			s.Release()
			return nil, err
		}
	}
	return s, nil
}

// Release ends the hold of a snapshot that was taken with [Hold], and does
// nothing otherwise. The snapshot can still be read, as far as its versions are
// there.
func (s *Snapshot) Release() {
	if s.hold != nil {
		s.client.Holds.Remove(s.hold)
	}
}

// ReadTS is the timestamp the snapshot reads at.
func (s *Snapshot) ReadTS() tso.Timestamp { return s.ts }

// Table returns the snapshot's view of a table.
func (s *Snapshot) Table(name string) *View {
	return &View{client: s.client, name: name, ts: s.ts, reads: s.reads}
}
