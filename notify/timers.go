package notify

import (
	"sync"
	"time"
)

// maxTimers bounds the timers of a worker, and so its memory. A cell without a timer
// is checked when the finder offers it again.
const maxTimers = 10_000

// timers call functions later, while they are open. The zero value is closed.
type timers struct {
	mu     sync.Mutex
	opened bool
	all    map[*time.Timer]struct{}
}

func (t *timers) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened, t.all = true, map[*time.Timer]struct{}{}
}

// after calls f when d has passed, unless there are maxTimers already or the timers
// are closed by then.
func (t *timers) after(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.opened || len(t.all) >= maxTimers {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		t.mu.Lock()
		delete(t.all, timer)
		opened := t.opened
		t.mu.Unlock()
		if opened {
			f()
		}
	})
	t.all[timer] = struct{}{}
}

func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened = false
	for timer := range t.all {
		timer.Stop()
	}
}
