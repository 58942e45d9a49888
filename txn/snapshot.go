package txn

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// A Snapshot reads a consistent state of all tables at one timestamp. It holds
// nothing in Bigtable and needs no end. Its methods may be called
// concurrently.
type Snapshot struct {
	client *Client
	ts     tso.Timestamp
}

// Snapshot returns the state as of now, or, with [At], as of an earlier
// timestamp. It sees every transaction that committed before the call.
func (c *Client) Snapshot(ctx context.Context, opts ...SnapshotOption) (*Snapshot, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	var o snapshotOptions
	for _, opt := range opts {
		opt(&o)
	}
	now, err := c.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case !o.past:
		return &Snapshot{c, now}, nil
	case o.at <= 0:
		return nil, invalid("snapshot at %d; a timestamp is a positive number of microseconds since 1970", o.at)
	case o.at > now:
		// At a timestamp that is yet to come, reads would not be repeatable.
		return nil, invalid("snapshot at %d (%s), which is after the oracle's present, %d (%s)", o.at, o.at.Time().Format(time.RFC3339Nano), now, now.Time().Format(time.RFC3339Nano))
	}
	return &Snapshot{c, o.at}, nil
}

// ReadTS is the timestamp the snapshot reads at.
func (s *Snapshot) ReadTS() tso.Timestamp { return s.ts }

// Table returns the snapshot's view of a table.
func (s *Snapshot) Table(name string) *View {
	return &View{client: s.client, name: name, ts: s.ts}
}
