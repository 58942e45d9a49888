package telemetry

import (
	"context"
	"sync"
)

// Secondaries is the span of one transaction's secondaries. The background commits them
// after the transaction has ended, in batches with those of other transactions. A nil
// Secondaries records nothing.
type Secondaries struct {
	span Span

	mu        sync.Mutex
	remaining int   // rows neither committed nor failed
	err       error // of a row that failed
}

// Done counts rows that are committed. The last row ends the span.
func (s *Secondaries) Done(rows int) { s.count(rows, nil) }

// Fail counts a row that the background gave up. The client that reaches the row's lock
// next resolves it.
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
