package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// A clock asks the oracle for timestamps, and remembers what its answers say about the
// present.
type Clock struct {
	store  *Store
	Oracle tso.Oracle
	created   time.Time
	// ahead is how far the oracle's time is ahead of the time since made, in
	// microseconds; 0: not known yet.
	ahead atomic.Int64

	mu sync.Mutex
	// readable is the largest timestamp that this client may read at without asking
	// the oracle again: below a start timestamp that it was given, or its own commit_ts.
	// A commit_ts on its way does not count: a reader at it would wait for that
	// commit. Of a start timestamp, it is the one below: nobody commits at a start
	// timestamp, so the state is the same, and the lock that its own transaction may
	// leave is in no reader's way.
	readable tso.Timestamp
	// asked is when readable was as good as new. The oracle's timestamps follow real
	// time, so every transaction that committed before a request began has a
	// commit_ts below its answer. What raises readable later cannot make it older.
	asked time.Time
	// committed is the largest commit_ts of this client.
	committed tso.Timestamp
}

func (c *Clock) init(s *Store) { c.store, c.created = s, time.Now() }

// Timestamp asks the oracle for a timestamp to begin or read at.
func (c *Clock) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, asked, err := c.CommitTimestamp(ctx)
	if err == nil {
		c.NoteReadable(ts-1, asked)
	}
	return ts, err
}

// CommitTimestamp is timestamp for what must not be read at yet: a commit_ts. asked is
// before the request.
func (c *Clock) CommitTimestamp(ctx context.Context) (ts tso.Timestamp, asked time.Time, err error) {
	c.store.Counters.Timestamps.Add(1)
	began := time.Now()
	sctx, span := c.store.Trace.Begin(ctx, "timestamp", "")
	ts, err = c.Oracle.Timestamp(sctx)
	span.EndWith(err)
	c.store.Metrics.Timestamp(ctx, began, err)
	if err != nil {
		return 0, began, fmt.Errorf("txn: timestamp oracle: %w", err)
	}
	c.ahead.Store(int64(ts) - time.Since(c.created).Microseconds())
	return ts, began, nil
}

// Now estimates the oracle's time from the last answer, without asking. It is for
// deciding when to look at something again, never for what has to be right. 0: no
// answer yet.
func (c *Clock) Now() tso.Timestamp {
	if ahead := c.ahead.Load(); ahead != 0 {
		return tso.Timestamp(ahead + time.Since(c.created).Microseconds())
	}
	return 0
}

// NoteReadable takes in a timestamp to read at that was asked for at asked; zero: at a time
// that is not known.
func (c *Clock) NoteReadable(ts tso.Timestamp, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raiseReadable(ts, asked)
}

// raiseReadable is learn with c.mu held.
func (c *Clock) raiseReadable(ts tso.Timestamp, asked time.Time) {
	if ts < c.readable {
		return
	}
	c.readable = ts
	if asked.After(c.asked) {
		c.asked = asked
	}
}

// NoteCommit takes in a commit of this client, whose timestamp was asked for at asked
// (zero: not known): stale snapshots show it, and what begins from now on is above it.
func (c *Clock) NoteCommit(ts tso.Timestamp, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raiseReadable(ts, asked)
	c.committed = max(c.committed, ts)
}

// AboveCommits reports whether ts is above every commit of this client.
func (c *Clock) AboveCommits(ts tso.Timestamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ts > c.committed
}

// ReadableWithin returns a timestamp to read at that was asked for less than d ago. The wall
// clock counts besides the monotonic one, which stands still while a machine sleeps.
func (c *Clock) ReadableWithin(d time.Duration) (tso.Timestamp, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.IsZero() || max(time.Since(c.asked), time.Since(c.asked.Round(0))) >= d {
		return 0, false
	}
	return c.readable, true
}

// Remaining is how long oracle time now is before ts, at least 0.
func Remaining(now, ts tso.Timestamp) time.Duration {
	return max(0, time.Duration(ts-now)*time.Microsecond)
}
