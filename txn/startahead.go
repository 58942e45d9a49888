package txn

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
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

// A startAhead is a start timestamp that was asked for ahead.
type startAhead struct {
	done chan struct{} // closed when the fields below are set
	ts   tso.Timestamp
	// asked is a time before the request was sent.
	asked time.Time
	err   error
}

// isRecent reports whether the timestamp is younger than maxStartAge. The wall clock counts
// besides the monotonic one, which stands still while a machine sleeps.
func (s *startAhead) isRecent() bool {
	return max(time.Since(s.asked), time.Since(s.asked.Round(0))) < maxStartAge
}

// ask asks the oracle and sets the timestamp or the error.
func (s *startAhead) ask(ctx context.Context, c *store.Clock) {
	defer close(s.done)
	s.ts, s.asked, s.err = c.CommitTimestamp(ctx)
}

// await reports whether the answer arrived. It waits at most maxStartAge, because a later
// answer would be too old, and ends early with ctx.
func (s *startAhead) await(ctx context.Context) bool {
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

// startsAhead are the timestamps that wait for a transaction that reads nothing.
type startsAhead struct {
	mu      sync.Mutex
	waiting []*startAhead // in the order of the requests
	// lastBegin is when the last of these transactions began; busy: the one before it
	// began less than maxStartAge earlier.
	lastBegin time.Time
	busy      bool
}

// take removes and returns the timestamp that the client asked for last, whether the answer
// has arrived or not. It returns nil if there is none.
func (s *startsAhead) take() *startAhead {
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

// usable reports whether a transaction may begin at the timestamp: it is recent, and above
// every commit of this client.
func (s *startAhead) usable(c *store.Clock) bool {
	return s.err == nil && c.AboveCommits(s.ts) && s.isRecent()
}

// add adds a timestamp for the caller to ask for. It returns nil if no transaction is
// likely to use it soon.
func (s *startsAhead) add() *startAhead {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.busy {
		return nil
	}
	n := &startAhead{done: make(chan struct{})}
	if len(s.waiting) == maxStartsAhead {
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
	s.waiting = append(s.waiting, n)
	return n
}

// askAhead asks the oracle, in the background, for the start timestamp of a later transaction
// that reads nothing. A transaction that reads nothing calls it when it has its commit_ts.
func (s *startsAhead) askAhead(b *store.Background, c *store.Clock) {
	n := s.add()
	if n == nil {
		return
	}
	if !b.Run(func(ctx context.Context) { n.ask(ctx, c) }) {
		n.err = ErrClosed
		close(n.done)
	}
}
