// Package locktable keeps advisory locks in memory: for one process, and for the
// clients of a server, whose memory it bounds.
package locktable

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// MaxName bounds names and owners, in bytes: row keys may have 4 KiB, and
	// prefix and escapes need some of that.
	MaxName = 2 << 10

	// MaxTTL bounds how long a lock can exclude other owners when its owner does
	// not release it.
	MaxTTL = 10 * time.Minute

	// Overhead is what a lock counts beside its name and its owner, in bytes: at
	// least what the map needs for it.
	Overhead = 256

	// minSweep is the smallest number of locks that is worth sweeping.
	minSweep = 1024

	// sweepPause is the least time between two sweeps that clients cause. Without it,
	// each refusal would cost a look at every lock.
	sweepPause = time.Second
)

// ErrFull says that a table, or the part of it that one client may use, is full.
var ErrFull = errors.New("tso: no memory is left for advisory locks")

// Holder is a tso.Holder.
type Holder struct {
	Owner string
	Left  time.Duration
}

// Check says what is wrong with a request for a lock.
func Check(name, owner string, ttl time.Duration) error {
	switch {
	case name == "" || len(name) > MaxName:
		return fmt.Errorf("tso: lock name of %d bytes; it has to be 1 to %d", len(name), MaxName)
	case owner == "" || len(owner) > MaxName:
		return fmt.Errorf("tso: lock owner of %d bytes; it has to be 1 to %d", len(owner), MaxName)
	case ttl <= 0 || ttl > MaxTTL:
		return fmt.Errorf("tso: lock ttl of %s; it has to be positive and at most %s", ttl, MaxTTL)
	}
	return nil
}

// A Table has the locks. They expire by the process's monotonic clock. Make tables
// with [New].
type Table struct {
	all, each int // bytes; 0: no bound

	mu    sync.Mutex
	held  map[string]lock
	bytes int
	by    map[any]int // bytes of each client
	sweep int         // size of held at which Acquire removes expired locks
	swept time.Time
}

type lock struct {
	owner  string
	until  time.Time
	client any
}

// New returns an empty table. Its locks have at most all bytes, and those of one
// client at most each. 0 means no bound.
func New(all, each int) *Table {
	return &Table{all: all, each: each, held: map[string]lock{}, by: map[any]int{}, sweep: minSweep}
}

// Acquire takes a lock for owner until ttl ends, or renews it. It counts as the
// client's. It fails with ErrFull if there is no room for it.
func (t *Table) Acquire(name, owner string, ttl time.Duration, client any) (bool, Holder, error) {
	if err := Check(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if old := t.held[name]; old.owner != owner && now.Before(old.until) {
		return false, Holder{old.owner, old.until.Sub(now)}, nil
	}
	next := lock{owner, now.Add(ttl), client}
	if t.full(name, next) && now.Sub(t.swept) >= sweepPause {
		t.clean(now)
	}
	if t.full(name, next) {
		return false, Holder{}, fmt.Errorf("%w: this client has %d bytes of %d, all clients have %d of %d; locks that are released or expire make room", ErrFull, t.by[client], t.each, t.bytes, t.all)
	}
	t.drop(name)
	t.held[name] = next
	t.count(name, next, 1)
	if len(t.held) >= t.sweep {
		t.clean(now)
	}
	return true, Holder{owner, ttl}, nil
}

// full reports whether there is no room for a lock, which may replace one.
func (t *Table) full(name string, next lock) bool {
	add := size(name, next)
	all, each := t.bytes+add, t.by[next.client]+add
	if old, ok := t.held[name]; ok {
		all -= size(name, old)
		if old.client == next.client {
			each -= size(name, old)
		}
	}
	return t.all > 0 && all > t.all || t.each > 0 && each > t.each
}

func size(name string, l lock) int { return len(name) + len(l.owner) + Overhead }

// count adds a lock to the counts, or takes it off them.
func (t *Table) count(name string, l lock, sign int) {
	t.bytes += sign * size(name, l)
	if t.by[l.client] += sign * size(name, l); t.by[l.client] == 0 {
		delete(t.by, l.client)
	}
}

// drop removes a lock if it is there.
func (t *Table) drop(name string) {
	if l, ok := t.held[name]; ok {
		delete(t.held, name)
		t.count(name, l, -1)
	}
}

// clean removes the locks that have expired.
func (t *Table) clean(now time.Time) {
	for name, l := range t.held {
		if !now.Before(l.until) {
			t.drop(name)
		}
	}
	t.sweep, t.swept = max(2*len(t.held), minSweep), now
}

// Release removes a lock if owner holds it.
func (t *Table) Release(name, owner string) error {
	if err := Check(name, owner, 1); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held[name].owner == owner {
		t.drop(name)
	}
	return nil
}

// Holder says who holds a lock; the zero Holder means that it is free.
func (t *Table) Holder(name string) (Holder, error) {
	if err := Check(name, name, 1); err != nil {
		return Holder{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if l := t.held[name]; now.Before(l.until) {
		return Holder{l.owner, l.until.Sub(now)}, nil
	}
	return Holder{}, nil
}

// Len returns how many locks are held.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clean(time.Now())
	return len(t.held)
}

// Size returns how many locks there are, and what they count. Locks that expired
// less than a second ago may be among them.
func (t *Table) Size() (locks, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.swept) >= sweepPause {
		t.clean(now)
	}
	return len(t.held), t.bytes
}
