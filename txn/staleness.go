package txn

import (
	"context"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
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

// youngest is the timestamp that a client may read at without asking the
// oracle again: the largest that it was given for a start, or at which it has
// committed. A commit_ts on its way is none of them: who reads at it waits for
// that commit.
//
// Of a start timestamp, it is the one below: nobody commits at a start timestamp,
// so the state is the same, and the lock that its own transaction may leave is in
// nobody's way.
//
// It is as good as new at asked. The oracle's timestamps follow real time, so
// whatever was committed before a request began has a commit_ts below its
// answer. What raises ts later cannot make it older.
type youngest struct {
	mu    sync.Mutex
	ts    tso.Timestamp
	asked time.Time
}

// learn takes in a timestamp that was asked for at asked, or at a time that is
// not known (zero).
func (r *youngest) learn(ts tso.Timestamp, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ts < r.ts {
		return
	}
	r.ts = ts
	if asked.After(r.asked) {
		r.asked = asked
	}
}

// madeCommit notes a commit of this client, whose timestamp was asked for at asked
// (zero: not known): its own stale snapshots show it, and what it begins from now
// on is above it.
func (c *Client) madeCommit(ts tso.Timestamp, asked time.Time) {
	c.youngest.learn(ts, asked)
	c.starts.passed(ts)
}

// within returns a timestamp that was asked for less than d ago. The wall clock
// counts besides the monotonic one, which stands still while a machine sleeps.
func (r *youngest) within(d time.Duration) (tso.Timestamp, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() || max(time.Since(r.asked), time.Since(r.asked.Round(0))) >= d {
		return 0, false
	}
	return r.ts, true
}

// snapshotTS returns the present for a snapshot, or what the options accept for
// it.
func (c *Client) snapshotTS(ctx context.Context, o *snapshotOptions) (tso.Timestamp, error) {
	if o.staleness == nil {
		return c.Timestamp(ctx)
	}
	switch d := *o.staleness; {
	case o.past:
		return 0, invalid("a snapshot with At and WithMaxStaleness; At says exactly which state")
	case d < 0:
		return 0, invalid("WithMaxStaleness(%v); it has to be positive, or zero to ask the oracle", d)
	}
	ts, ok := c.youngest.within(*o.staleness)
	// A safe point above it would refuse every read.
	if !ok || ts < c.safePoint.view.Load().ts {
		return c.Timestamp(ctx)
	}
	c.counters.reused.Add(1)
	c.metrics.reads.saved(ctx, "snapshot")
	return ts, nil
}
