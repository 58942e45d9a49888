package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/locktable"
)

// lockGrace is how long after a change of leader an absent lock is reported as
// unknown, not as free. Owners renew three times per ttl, so locks with a ttl of
// up to 30 seconds are back by then.
const lockGrace = 10 * time.Second

// termLocks are the locks of one term of leadership. They live in memory.
type termLocks struct {
	mu    sync.Mutex
	locks *locktable.Table
	since time.Time // when the memory was lost; zero: never
}

func newTermLocks() *termLocks {
	return &termLocks{locks: locktable.New(maxLockBytes, maxClientLockBytes)}
}

// current returns the locks of the present term.
func (l *termLocks) current() (*locktable.Table, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks, l.since
}

// forget drops all locks. For lockGrace, no lock is reported as free.
func (l *termLocks) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks, l.since = locktable.New(maxLockBytes, maxClientLockBytes), time.Now()
}

// holder says who holds a lock. It fails with tso.ErrLockUnknown while an absent
// lock may be held nevertheless.
func (l *termLocks) holder(name string) (locktable.Holder, error) {
	locks, since := l.current()
	by, err := locks.Holder(name)
	if err != nil || by.Owner != "" {
		return by, err
	}
	if age := time.Since(since); age < lockGrace {
		return locktable.Holder{}, fmt.Errorf("%w: the leader changed %s ago; ask again in %s", tso.ErrLockUnknown, age.Round(time.Millisecond), (lockGrace - age).Round(time.Millisecond))
	}
	return by, nil
}
