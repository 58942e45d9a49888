package tso

import (
	"context"
	"time"
)

// MaxCount is how many timestamps one request may ask a server for: a tenth of
// a second of oracle time, more callers than a process has waiting at once. A
// client splits what is larger.
const MaxCount = 100_000

// allocate returns the first of count consecutive timestamps, generated during
// the call, while this process was certain to lead. It waits where the range
// reserved is used up, which the reserve is there to avoid. It fails with
// ErrNotLeader, and then a number may have been lost.
func (l *leadership) allocate(ctx context.Context, count Timestamp) (Timestamp, error) {
	for tries := 0; ; tries++ {
		first, wait, err := l.generate(count)
		if wait == nil {
			return first, err
		}
		if tries == renewals {
			return 0, ErrNotLeader // others may do better than a leader that cannot write
		}
		patience := time.NewTimer(l.interval)
		select {
		case <-wait:
		case <-patience.C:
		case <-ctx.Done():
		}
		patience.Stop()
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// generate takes count timestamps out of the range in memory. A channel is
// returned to wait on when there are too few.
func (l *leadership) generate(count Timestamp) (first Timestamp, wait <-chan struct{}, err error) {
	l.mu.Lock()
	if !l.leading {
		l.mu.Unlock()
		l.nudge() // somebody wants a leader: see whether there is none
		return 0, nil, ErrNotLeader
	}
	// The clock moves timestamps up to the ceiling, which the last write set:
	// a clock that jumps ahead gets no further before it is confirmed.
	first = max(l.next, min(FromTime(l.clock())-l.offset, l.ceiling))
	if first > Max-count+1 {
		l.mu.Unlock()
		return 0, nil, ErrExhausted
	}
	if first+count-1 > l.limit {
		wait = l.changed
		l.mu.Unlock()
		l.nudge()
		return 0, wait, nil
	}
	l.next = first + count
	l.used += uint64(count)
	l.asked++
	low := l.limit-l.next < l.reserve/2
	until, wall := l.until, l.wall
	l.mu.Unlock()
	if low {
		l.nudge()
	}
	if l.generated != nil {
		l.generated()
	}

	// Only now it shows whether the range was generated in time. A process that
	// was stopped and goes on sees itself leading until its timer runs, and
	// finds requests in its sockets that were sent after another leader had
	// answered: those must not get what is left of the old range.
	if !l.unchecked && !l.within(until, wall) {
		l.nudge()
		return 0, nil, ErrNotLeader
	}
	return first, nil, nil
}

// within reports whether the present is certain to be before until, by two
// witnesses: the monotonic clock, and the wall clock, which goes on counting
// while a machine is suspended. A wall clock that was set ahead so costs one
// renewal; one that was set back says nothing.
func (l *leadership) within(until, wall time.Time) bool {
	return time.Now().Before(until) && l.clock().Round(0).Sub(wall) < l.length-l.length/rateMargin
}
