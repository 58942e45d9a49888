package telemetry

import (
	"sync"
	"time"
)

// oldestWindow is how long a stranded lock that was met counts at least. Two
// windows are kept, so that a scrape never falls into an empty one.
const oldestWindow = time.Minute

// oldest remembers the age of the oldest stranded lock that was met lately. A
// lock that nobody meets is not known to anybody; `percctl lock list` looks.
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

// rotate begins a new window when the present one is over.
func (o *oldest) rotate(now time.Time) {
	switch passed := now.Sub(o.since); {
	case passed < oldestWindow:
		return
	case passed < 2*oldestWindow:
		o.last = o.current
	default:
		o.last = 0
	}
	o.current, o.since = 0, now
}
