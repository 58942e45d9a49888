package telemetry

import (
	"sync"
	"time"
)

// oldestWindow is how long a stranded lock counts at least. oldest keeps two windows, so
// that a scrape never sees an empty one just because it has begun.
const oldestWindow = time.Minute

// oldest keeps the age of the oldest stranded lock that this client found recently. A
// lock that no client reaches is not in it; `percctl lock list` finds those.
type oldest struct {
	mu            sync.Mutex
	since         time.Time // when current began
	current, last time.Duration
}

func (o *oldest) note(now time.Time, age time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rotate(now)
	o.current = max(o.current, age)
}

func (o *oldest) read(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rotate(now)
	return max(o.current, o.last)
}

// rotate begins a new window if the current one has ended. o.mu is held.
func (o *oldest) rotate(now time.Time) {
	switch elapsed := now.Sub(o.since); {
	case elapsed < oldestWindow:
		return
	case elapsed < 2*oldestWindow:
		o.last = o.current
	default:
		o.last = 0
	}
	o.current, o.since = 0, now
}
