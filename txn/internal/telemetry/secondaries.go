package telemetry

import (
	"context"
	"sync"
)

// Secondaries is the span of one transaction's secondaries, which are committed
// after the transaction is over, in batches with those of others. nil is none.
type Secondaries struct {
	span Span

	mu   sync.Mutex
	remaining int // rows
	err  error
}

// Done counts rows that are committed; the last one ends the span.
func (s *Secondaries) Done(rows int) { s.count(rows, nil) }

// Fail counts a row that is left to whoever meets its lock.
func (s *Secondaries) Fail(err error) {
	if err == nil {
		err = context.Canceled
	}
	s.count(1, err)
}

func (s *Secondaries) count(rows int, err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remaining -= rows
	if err != nil {
		s.err = err
	}
	if s.remaining == 0 {
		s.span.EndWith(s.err)
	}
}
