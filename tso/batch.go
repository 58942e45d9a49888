package tso

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// batch is the callers that share one reservation, in the order of their
// arrival. Direct's mutex guards it.
type batch struct {
	waiters []*waiter
	live    int64              // waiters that were not answered and did not leave
	origin  trace.SpanContext  // the span of the first caller, or of the first sampled one
	cancel  context.CancelFunc // ends the reservation; nil before it is sent
}

// waiter is one caller. ts and err may be read once done is closed.
type waiter struct {
	batch *batch
	gone  bool
	done  chan struct{}
	ts    Timestamp
	err   error
}

func (b *batch) add() *waiter {
	w := &waiter{batch: b, done: make(chan struct{})}
	b.waiters = append(b.waiters, w)
	b.live++
	return w
}

// remove removes w and reports true, unless w was answered. The last waiter to
// leave cancels the reservation.
func (b *batch) remove(w *waiter) bool {
	if b.live == 0 {
		return false // answered
	}
	w.gone = true
	b.live--
	if b.live == 0 && b.cancel != nil {
		b.cancel()
	}
	return true
}

// finish answers the remaining waiters: with err, or with the timestamps from
// first on. Only the first call answers; later calls, and calls on a nil batch,
// do nothing.
func (b *batch) finish(first Timestamp, err error) {
	if b == nil || b.live == 0 {
		return
	}
	for _, w := range b.waiters {
		if w.gone {
			continue
		}
		w.err = err
		if err == nil {
			w.ts = first
			first++
		}
		close(w.done)
	}
	b.live = 0
	if b.cancel != nil {
		b.cancel()
	}
}
