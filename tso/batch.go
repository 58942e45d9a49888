package tso

import (
	"context"
	"runtime"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// batch is the callers that share one reservation. Direct's mutex guards it. All
// callers wait for one channel: waking them together takes less time than one by
// one.
type batch struct {
	joined int64              // callers; each has a place, counted from 0
	live   int64              // callers that were not answered and did not leave
	origin trace.SpanContext  // the span of the first caller, or of the first sampled one
	cancel context.CancelFunc // ends the reservation; nil before it is sent

	done  chan struct{} // closed when the fields below may be read
	first Timestamp     // of the caller with place 0
	err   error
}

// add returns the place of another caller.
func (b *batch) add() (place int64) {
	b.joined++
	b.live++
	return b.joined - 1
}

// remove removes a caller and reports true, unless it was answered. The last
// caller to leave cancels the reservation.
func (b *batch) remove() bool {
	if b.live == 0 {
		return false // answered
	}
	b.live--
	if b.live == 0 && b.cancel != nil {
		b.cancel()
	}
	return true
}

// finish answers the remaining callers: with err, or with the timestamps from
// first on. Only the first call answers; later calls, and calls on a nil batch,
// do nothing.
func (b *batch) finish(first Timestamp, err error) {
	if b == nil || b.live == 0 {
		return
	}
	b.first, b.err = first, err
	close(b.done)
	b.live = 0
	if b.cancel != nil {
		b.cancel()
	}
}

// gather yields at most gatherTries times without a new caller, and not again after gatherAtMost,
// which is about what a request takes.
const (
	gatherTries  = 4
	gatherAtMost = 100 * time.Microsecond
)

// gather lets callers that will ask soon join the batch that forms, before it is sent: the
// expected callers of the batch before were answered a moment ago, and may ask again. It yields to
// goroutines that can run, while that brings more callers. If no goroutine can run, it returns at
// once. So a caller that is alone waits for nobody.
func gather(joined func() int64, expected int64) {
	if expected <= 1 {
		return
	}
	began := time.Now()
	for n, tries := joined(), 0; n < expected && tries < gatherTries && time.Since(began) < gatherAtMost; tries++ {
		runtime.Gosched()
		if more := joined(); more > n {
			n, tries = more, -1
		}
	}
}
