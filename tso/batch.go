package tso

import (
	"context"

	"go.opentelemetry.io/otel/trace"
)

// batch is the callers who share one reservation, in the order of their
// arrival. Direct's mutex guards it.
type batch struct {
	waiters []*waiter
	live    int64              // waiters neither answered nor gone
	origin  trace.SpanContext  // the span of the first of them that is recorded
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

// remove takes w out, unless it was answered. Without anybody left to wait,
// the reservation ends.
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

// finish answers whoever is left: with err, or with the timestamps from first
// on. A batch is answered once; later calls, and a nil batch, are no-ops.
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
