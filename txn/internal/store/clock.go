package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A Clock asks the oracle for timestamps, and remembers what the answers say about the
// present.
type Clock struct {
	store   *Store
	Oracle  tso.Oracle
	created time.Time
	// ahead is the oracle's time minus the time since created, in microseconds. 0 means that
	// it is not known yet.
	ahead atomic.Int64

	mu sync.Mutex
	// newest is the largest timestamp that this client may use again for reads, without
	// asking the oracle: a start timestamp that it was given, one of its own commit
	// timestamps, or that of a commit that it has shown as the latest. The commit_ts of a
	// commit under way does not count: a reader there would wait for that commit.
	newest tso.Timestamp
	// isStart says that newest is a start timestamp. Then reads use the one below. No
	// transaction commits at a start timestamp, so the state is the same, and a lock that the
	// transaction itself leaves blocks no reader.
	isStart bool
	// asked is a time at which newest was up to date. The oracle's timestamps follow real
	// time, so every transaction that committed before a request began has a commit_ts below
	// the answer. A timestamp that raises newest later never moves asked back.
	asked time.Time
	// committed is the largest commit_ts of this client.
	committed tso.Timestamp
}

func (c *Clock) init(s *Store) { c.store, c.created = s, time.Now() }

// Timestamp asks the oracle for a timestamp to begin or read at.
func (c *Clock) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, asked, err := c.CommitTimestamp(ctx)
	if err == nil {
		c.NoteStart(ts, asked)
	}
	return ts, err
}

// CommitTimestamp asks the oracle for a commit_ts, at which this client must not read yet, nor
// call a state that of this timestamp: the commit belongs to it.
// asked is a time before the request.
//
// While no server of the oracle answers, it asks again until ctx ends, as reads do while a tablet is
// away: the oracle's only server does not answer while the tablet of its row is away.
func (c *Clock) CommitTimestamp(ctx context.Context) (ts tso.Timestamp, asked time.Time, err error) {
	c.store.Counters.Timestamps.Add(1)
	c.store.SafePoint.Need()
	began := time.Now()
	sctx, span := c.store.Trace.Begin(ctx, "timestamp", "")
	ts, err = c.Oracle.Timestamp(sctx)
	if errors.Is(err, tso.ErrUnavailable) {
		ts, began, err = c.askAgain(sctx, err)
	}
	span.EndWith(err)
	c.store.Metrics.Timestamp(ctx, began, err)
	if closed := c.store.CheckOpen(); closed != nil {
		return 0, began, closed // the oracle is closed with the client
	}
	if err != nil {
		return 0, began, fmt.Errorf("percolator: timestamp oracle: %w", err)
	}
	if ts < tso.Min || ts > tso.Max {
		return 0, began, format.Invalidf("the timestamp oracle answered %d; timestamps lie between %d and %d (see tso.Oracle)", ts, tso.Min, tso.Max)
	}
	c.ahead.Store(int64(ts) - time.Since(c.created).Microseconds())
	return ts, began, nil
}

// askAgain asks until a server answers. last says why none does.
func (c *Clock) askAgain(ctx context.Context, last error) (ts tso.Timestamp, asked time.Time, err error) {
	for pause := c.store.Config.Backoff.Start(); c.store.CheckOpen() == nil && pause.Wait(ctx, 0) == nil; last = err {
		asked = time.Now()
		ts, err = c.Oracle.Timestamp(ctx)
		if ctx.Err() != nil && err != nil {
			break
		}
		if !errors.Is(err, tso.ErrUnavailable) {
			return ts, asked, err
		}
	}
	if ctx.Err() != nil {
		last = Ended(ctx, "waiting for a server", last)
	}
	return 0, asked, last
}

// Now estimates the oracle's time from the last answer, without a request. It may decide when
// to check something again, and nothing that safety depends on. 0 means that there was no
// answer yet.
func (c *Clock) Now() tso.Timestamp {
	if ahead := c.ahead.Load(); ahead != 0 {
		return tso.Timestamp(ahead + time.Since(c.created).Microseconds())
	}
	return 0
}

// NoteStart remembers a start timestamp, of a transaction or a snapshot. asked is when the
// client asked for it.
func (c *Clock) NoteStart(ts tso.Timestamp, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(ts, true, asked)
}

// raise raises newest. The caller holds c.mu.
func (c *Clock) raise(ts tso.Timestamp, isStart bool, asked time.Time) {
	if ts < c.newest {
		return
	}
	c.newest, c.isStart = ts, isStart
	if asked.After(c.asked) {
		c.asked = asked
	}
}

// NoteCommit remembers a commit of this client. asked is when the client asked for its
// timestamp; the zero time means that this is not known. From now on, stale snapshots show
// the commit, and every new transaction begins above it.
func (c *Clock) NoteCommit(ts tso.Timestamp, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(ts, false, asked)
	c.committed = max(c.committed, ts)
}

// NoteLatest remembers the newest commit that a read of the latest state has shown. From now on,
// stale snapshots show that state or a later one.
func (c *Clock) NoteLatest(ts tso.Timestamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.raise(ts, false, time.Time{})
}

// maxUnconfirmed is how far a commit_ts may lie above the estimated time of the oracle before
// the client asks. The estimate is late by a round trip and by what the clocks differ since
// the last answer.
const maxUnconfirmed = tso.Timestamp(time.Second / time.Microsecond)

// Confirm returns an error if the oracle cannot have handed out the commit_ts of a cell. It
// asks the oracle only if the estimate leaves a doubt.
func (c *Clock) Confirm(ctx context.Context, cell format.Cell, commitTS tso.Timestamp) error {
	if commitTS <= c.Now()+maxUnconfirmed {
		return nil
	}
	now, err := c.Timestamp(ctx)
	if err == nil && commitTS > now {
		err = format.Corruptf(cell, "the write record is at %d, but the oracle is at %d: no transaction of this oracle wrote it. If the oracle was restored or replaced, run `percctl tso advance`", commitTS, now)
	}
	return err
}

// AboveCommits reports whether ts is above every commit of this client.
func (c *Clock) AboveCommits(ts tso.Timestamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return ts > c.committed
}

// Newest returns a timestamp that the oracle has handed out, or 0. No transaction takes a
// commit_ts below it any more.
func (c *Clock) Newest() tso.Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// ReadableWithin returns a timestamp that is less than d old, and the timestamp at which
// reads show the state of that moment. ok is false if there is none. It compares the wall
// clock as well, because the monotonic clock stands still while a machine sleeps.
func (c *Clock) ReadableWithin(d time.Duration) (ts, readAt tso.Timestamp, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked.IsZero() || max(time.Since(c.asked), time.Since(c.asked.Round(0))) >= d {
		return 0, 0, false
	}
	if c.isStart {
		return c.newest, c.newest - 1, true
	}
	return c.newest, c.newest, true
}

// Remaining returns the time from now to ts, both in oracle time. It is never negative.
func Remaining(now, ts tso.Timestamp) time.Duration {
	return format.Micros(int64(ts - now))
}
