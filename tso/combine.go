package tso

import (
	"context"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// sealed is the bit of callers.joined that says that nobody may join any more.
const sealed = 1 << 62

// callers are those who share one request to the server. Joining is one atomic
// addition, which yields the caller's place; sealing is another, which yields
// how many there are. The request is sent after that, so its timestamps were
// generated after every one of its callers had asked, and whoever comes later
// finds the seal and joins the next. Everybody waits for one channel.
type callers struct {
	joined atomic.Int64
	gone   atomic.Int64 // of those, how many do not wait any more
	// origin is the span of the first caller, if that is recorded and was quick.
	origin atomic.Pointer[trace.SpanContext]

	done chan struct{} // closed when the fields below may be read
	err  error
	// firsts are the first timestamps of ranges of MaxCount; the last range may
	// be shorter. inline is its place for the usual case of one range.
	firsts []Timestamp
	inline [1]Timestamp
}

func newCallers() *callers { return &callers{done: make(chan struct{})} }

// join returns the caller's place, counted from 0, and false when sealed.
func (b *callers) join() (place int64, ok bool) {
	place = b.joined.Add(1) - 1
	return place, place&sealed == 0
}

// seal ends joining and returns how many have joined.
func (b *callers) seal() int64 { return b.joined.Or(sealed) &^ sealed }

// wait returns the timestamp of a place, or the batch's error; ended reports
// that ctx ended first.
func (b *callers) wait(ctx context.Context, place int64) (ts Timestamp, ended bool, err error) {
	if end := ctx.Done(); end == nil {
		<-b.done
	} else {
		select {
		case <-b.done:
		case <-end:
			b.gone.Add(1)
			return 0, true, nil
		}
	}
	if b.err != nil {
		return 0, false, b.err
	}
	return b.firsts[place/MaxCount] + Timestamp(place%MaxCount), false, nil
}

// abandoned reports whether nobody waits. n is what seal returned.
func (b *callers) abandoned(n int64) bool { return b.gone.Load() >= n }

// finish answers everybody.
func (b *callers) finish(err error) {
	b.err = err
	close(b.done)
}
