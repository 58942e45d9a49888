package txn

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/trace"
)

// secondaries is the span of one transaction's secondaries, which are committed
// after the transaction is over, in batches with those of others. nil is none.
type secondaries struct {
	span span

	mu   sync.Mutex
	left int // rows
	err  error
}

// secondaries begins the span; it is the transaction's child and holds nothing
// open.
func (t tracing) secondaries(ctx context.Context, rows int) *secondaries {
	if rows == 0 || !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, s := t.begin(ctx, "commit secondaries", "")
	if !s.on() {
		return nil
	}
	s.set(attrRows.Int(rows))
	return &secondaries{span: s, left: rows}
}

// done counts rows that are committed; the last one ends the span.
func (s *secondaries) done(rows int) { s.count(rows, nil) }

// fail counts a row that is left to whoever meets its lock.
func (s *secondaries) fail(err error) {
	if err == nil {
		err = context.Canceled
	}
	s.count(1, err)
}

func (s *secondaries) count(rows int, err error) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left -= rows
	if err != nil {
		s.err = err
	}
	if s.left == 0 {
		s.span.end(s.err)
	}
}

// names bounds the bytes of names in a mutation of the row: each cell's up to
// three times, and those of the primary in each record.
func (r *rowWrites) names(primary Cell) int {
	n := len(r.writes) * (len(primary.Row) + len(primary.Qualifier))
	for _, w := range r.writes {
		n += 3 * (len(w.cell.Family) + len(w.cell.Qualifier))
	}
	return n
}
