// Package ahead asks the oracle for start timestamps before their transactions begin.
package ahead

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A client asks for some start timestamps before their transaction begins, so that the
// transaction does not wait for the oracle
// (docs/design/2026-11-20-oracle-pipelining.md). It gives each timestamp to one
// transaction, because the start timestamp is the transaction's name. Only transactions that
// read nothing begin like this. They take effect at their commit_ts, which the client asks
// for at the usual time. An early start timestamp adds conflicts with transactions that have
// committed since. It adds none that could not have happened anyway. A transaction that
// reads would miss what was committed after the request and before it began.

// maxStartAge is the largest age of a start timestamp when its transaction begins. The older
// it is, the more the transaction conflicts with.
const maxStartAge = 100 * time.Millisecond

// maxStartsAhead bounds the timestamps that wait for a transaction. Beyond it, the client
// drops the oldest.
const maxStartsAhead = 16

// A Start is a start timestamp that was asked for ahead.
type Start struct {
	done chan struct{} // closed when the fields below are set
	TS   tso.Timestamp
	// Asked is a time before the request was sent.
	Asked time.Time
	err   error
}

// isRecent reports whether the timestamp is younger than maxStartAge. The wall clock counts
// besides the monotonic one, which stands still while a machine sleeps.
func (s *Start) isRecent() bool {
	return max(time.Since(s.Asked), time.Since(s.Asked.Round(0))) < maxStartAge
}

// ask asks the oracle and sets the timestamp or the error.
func (s *Start) ask(ctx context.Context, c *store.Clock) {
	defer close(s.done)
	s.TS, s.Asked, s.err = c.CommitTimestamp(ctx)
}

// Await reports whether the answer arrived. It waits at most maxStartAge, because a later
// answer would be too old, and ends early with ctx.
func (s *Start) Await(ctx context.Context) bool {
	select {
	case <-s.done:
		return true
	default:
	}
	late := time.NewTimer(maxStartAge)
	defer late.Stop()
	select {
	case <-s.done:
		return true
	case <-late.C:
	case <-ctx.Done():
	}
	return false
}

// Starts are the timestamps that wait for a transaction that reads nothing.
type Starts struct {
	mu      sync.Mutex
	waiting []*Start // in the order of the requests
	// lastBegin is when the last of these transactions began; busy: the one before it
	// began less than maxStartAge earlier.
	lastBegin time.Time
	busy      bool
}

// Take removes and returns the timestamp that the client asked for last, whether the answer
// has arrived or not. It returns nil if there is none.
func (s *Starts) Take() *Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.busy, s.lastBegin = now.Sub(s.lastBegin) < maxStartAge, now
	last := len(s.waiting) - 1
	if last < 0 {
		return nil
	}
	next := s.waiting[last]
	s.waiting = s.waiting[:last]
	return next
}

// Usable reports whether a transaction may begin at the timestamp: it is recent, and above
// every commit of this client.
func (s *Start) Usable(c *store.Clock) bool {
	return s.err == nil && c.AboveCommits(s.TS) && s.isRecent()
}

// add adds a timestamp for the caller to ask for. It returns nil if no transaction is
// likely to use it soon.
func (s *Starts) add() *Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.busy {
		return nil
	}
	n := &Start{done: make(chan struct{})}
	if len(s.waiting) == maxStartsAhead {
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
	s.waiting = append(s.waiting, n)
	return n
}

// Ask asks the oracle, in the background, for the start timestamp of a later transaction
// that reads nothing. A transaction that reads nothing calls it when it has its commit_ts.
func (s *Starts) Ask(b *store.Background, c *store.Clock) {
	n := s.add()
	if n == nil {
		return
	}
	if !b.Run(func(ctx context.Context) { n.ask(ctx, c) }) {
		n.err = format.ErrClosed
		close(n.done)
	}
}
