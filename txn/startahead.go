package txn

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Start timestamps that are asked for before their transaction begins, so that
// it does not wait for the oracle (docs/design/2026-11-20-oracle-pipelining.md).
// There are two kinds, and neither is a cache: each timestamp is given to one
// transaction, because the start timestamp is its name.
//
//   - Of transactions that read nothing. They are as if at their commit_ts, which
//     is asked for when it always is. An early start makes a transaction conflict
//     with what was committed since, and with nothing that it could not have
//     conflicted with.
//   - Of the next attempt of an Update, behind the conflict that calls for one.

// maxStartAge is how long before a transaction its start timestamp may have been
// asked for. The older it is, the more it conflicts with.
const maxStartAge = 100 * time.Millisecond

// maxAttemptsAhead is up to which attempt of an Update the next one's timestamp is
// asked for ahead: behind later ones, Update waits for longer than that saves.
const maxAttemptsAhead = 3

// maxStartsAhead bounds the timestamps that wait for a transaction.
const maxStartsAhead = 16

// A startAhead is a start timestamp that was asked for ahead.
type startAhead struct {
	done chan struct{} // closed when the rest is set
	ts   tso.Timestamp
	// asked is before the request.
	asked time.Time
	err   error
}

func (s *startAhead) young() bool {
	return max(time.Since(s.asked), time.Since(s.asked.Round(0))) < maxStartAge
}

// ask asks the oracle.
func (s *startAhead) ask(ctx context.Context, c *store.Clock) {
	defer close(s.done)
	s.ts, s.asked, s.err = c.Ask(ctx)
}

// answered waits for the answer, unless that will be too old to be used.
func (s *startAhead) answered(ctx context.Context) bool {
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

// startsAhead are those that wait for a transaction that reads nothing.
type startsAhead struct {
	mu      sync.Mutex
	waiting []*startAhead // in the order in which they were asked for
	// began is when the last of these transactions did, busy whether the one
	// before it did shortly before.
	began time.Time
	busy  bool
}

// take returns the one that was asked for last, answered or not; nil: there is
// none. Each is taken once.
func (s *startsAhead) take() *startAhead {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.busy, s.began = now.Sub(s.began) < maxStartAge, now
	last := len(s.waiting) - 1
	if last < 0 {
		return nil
	}
	next := s.waiting[last]
	s.waiting = s.waiting[:last]
	return next
}

// usable reports whether a transaction may begin at an answer: it is young, and
// nothing that this client has committed is in its way.
func (s *startAhead) usable(c *store.Clock) bool {
	return s.err == nil && c.AboveCommits(s.ts) && s.young()
}

// add makes room for one more, if it is likely to be of use.
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
