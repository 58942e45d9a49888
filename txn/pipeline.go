package txn

import (
	"context"
	"errors"
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

// WriteOnly declares that the transaction reads nothing: Get, ReadRow and the like
// fail with ErrInvalid, those that are part of DeleteRow and GetForUpdate too. Such
// transactions, where they follow each other, need not wait for a start timestamp:
// the client asks for the next one while one commits, and the critical path is
// three round trips instead of four.
//
// The transaction may then conflict with what another client has committed up to
// 100 ms before it began, and never with what this client has.
func WriteOnly() TxnOption { return func(o *txnOptions) { o.writeOnly = true } }

// A start is a start timestamp that was asked for ahead.
type start struct {
	done chan struct{} // closed when the rest is set
	ts   tso.Timestamp
	// asked is before the request.
	asked time.Time
	err   error
}

func (s *start) young() bool {
	return max(time.Since(s.asked), time.Since(s.asked.Round(0))) < maxStartAge
}

// ask asks the oracle.
func (s *start) ask(ctx context.Context, c *Client) {
	defer close(s.done)
	s.ts, s.asked, s.err = c.Clock.Ask(ctx)
}

// answered waits for the answer, unless that will be too old to be used.
func (s *start) answered(ctx context.Context) bool {
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

// starts are those that wait for a transaction that reads nothing.
type starts struct {
	mu      sync.Mutex
	waiting []*start // in the order in which they were asked for
	// began is when the last of these transactions did, busy whether the one
	// before it did shortly before.
	began time.Time
	busy  bool
}

// take returns the one that was asked for last, answered or not; nil: there is
// none. Each is taken once.
func (s *starts) take() *start {
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

// good reports whether a transaction may begin at an answer: it is young, and
// nothing that this client has committed is in its way.
func (s *start) good(c *store.Clock) bool {
	return s.err == nil && c.AboveCommits(s.ts) && s.young()
}

// add makes room for one more, if it is likely to be of use.
func (s *starts) add() *start {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.busy {
		return nil
	}
	n := &start{done: make(chan struct{})}
	if len(s.waiting) == maxStartsAhead {
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
	s.waiting = append(s.waiting, n)
	return n
}

// askAhead asks for the start timestamp of a transaction to come, behind the
// commit_ts of one that reads nothing.
func (c *Client) askAhead() {
	n := c.starts.add()
	if n == nil {
		return
	}
	if !c.Background.Run(func(ctx context.Context) { n.ask(ctx, c) }) {
		n.err = ErrClosed
		close(n.done)
	}
}

// askAgain asks for the start timestamp of the next attempt while this one is
// rolled back. Not behind a lock: its transaction is going to commit above a
// timestamp of now.
func (t *Txn) askAgain(ctx context.Context, err error) {
	var conflict *ConflictError
	a := t.run
	if !errors.As(err, &conflict) || conflict.Reason != ConflictWrite && conflict.Reason != ConflictMarker {
		return
	}
	if !a.again || a.number > maxAttemptsAhead {
		return
	}
	if limit := t.opts.maxAttempts; limit > 0 && a.number >= limit {
		return
	}
	a.next = &start{done: make(chan struct{})}
	go a.next.ask(ctx, t.client)
}

// begins gives the transaction its start timestamp.
func (t *Txn) begins(ctx context.Context) (err error) {
	c, n, why := t.client, t.run.next, "retry"
	t.run.next = nil
	// A retry takes none from before its conflict.
	if n == nil && t.opts.writeOnly && t.run.number == 1 {
		n, why = c.starts.take(), "write only"
	}
	if n != nil {
		answered := n.answered(ctx)
		if ctx.Err() != nil {
			return store.Ended(ctx, "waiting for a timestamp", nil)
		}
		if answered && n.good(&c.Clock) {
			// The age of its locks is counted from the question.
			t.startTS, t.early = n.ts, t.begun.Sub(n.asked)
			c.Clock.Learn(n.ts-1, n.asked) // the transaction may show what is below
			c.Counters.Asked.Add(1)
			c.measure.reads.saved(ctx, why)
			return nil
		}
	}
	t.startTS, err = c.Timestamp(ctx)
	return err
}
