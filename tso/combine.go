package tso

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// sealed is the bit of callers.joined that says that no caller may join any more.
const sealed = 1 << 62

// callers is the batch of callers that share one request to the server. Joining
// is one atomic addition, which returns the caller's place. Sealing is another,
// which returns the number of callers. The client sends the request after that,
// so the server generates its timestamps after every one of its callers asked. A
// later caller finds the seal and joins the next batch. All wait for one channel.
type callers struct {
	joined atomic.Int64
	gone   atomic.Int64 // how many of them do not wait any more
	// origin is the span of the first caller, if it has one and stored it in time.
	origin atomic.Pointer[trace.SpanContext]

	done chan struct{} // closed when the fields below may be read
	err  error
	// firsts are the first timestamps of ranges of MaxCount; the last range may
	// be shorter. inline is its memory for the usual case of one range.
	firsts []Timestamp
	inline [1]Timestamp
}

func newCallers() *callers { return &callers{done: make(chan struct{})} }

// join returns the caller's place, counted from 0, and false when sealed.
func (b *callers) join() (place int64, ok bool) {
	place = b.joined.Add(1) - 1
	return place, place&sealed == 0
}

// seal ends joining and returns how many callers joined.
func (b *callers) seal() int64 { return b.joined.Or(sealed) &^ sealed }

// wait returns the timestamp of a place, or the batch's error; ended reports
// that ctx ended first.
func (b *callers) wait(ctx context.Context, place int64) (ts Timestamp, ended bool, err error) {
	select {
	case <-b.done:
	case <-ctx.Done():
		b.gone.Add(1)
		return 0, true, nil
	}
	if b.err != nil {
		return 0, false, b.err
	}
	return b.firsts[place/MaxCount] + Timestamp(place%MaxCount), false, nil
}

// abandoned reports whether no caller waits any more. n is what seal returned.
func (b *callers) abandoned(n int64) bool { return b.gone.Load() >= n }

// finish answers all callers.
func (b *callers) finish(err error) {
	b.err = err
	close(b.done)
}
