package tso

import (
	"context"
	"sync"
	"time"
)

// MemoryLocks are locks within one process. They expire by its monotonic clock.
// Make them with [NewMemoryLocks].
type MemoryLocks struct {
	mu    sync.Mutex
	held  map[string]memoryLock
	sweep int // size of held at which Acquire removes expired locks
}

type memoryLock struct {
	owner string
	until time.Time
}

var _ Locks = (*MemoryLocks)(nil)

// NewMemoryLocks returns an empty set of locks.
func NewMemoryLocks() *MemoryLocks {
	return &MemoryLocks{held: map[string]memoryLock{}, sweep: minSweep}
}

// minSweep is the smallest number of locks that is worth sweeping.
const minSweep = 1024

// Acquire implements [Locks].
func (m *MemoryLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, Holder, error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	if err := ctx.Err(); err != nil {
		return false, Holder{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if l, ok := m.held[name]; ok && l.owner != owner && now.Before(l.until) {
		return false, Holder{l.owner, l.until.Sub(now)}, nil
	}
	m.held[name] = memoryLock{owner, now.Add(ttl)}
	if len(m.held) >= m.sweep {
		for n, l := range m.held {
			if !now.Before(l.until) {
				delete(m.held, n)
			}
		}
		m.sweep = max(2*len(m.held), minSweep)
	}
	return true, Holder{owner, ttl}, nil
}

// Release implements [Locks].
func (m *MemoryLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[name].owner == owner {
		delete(m.held, name)
	}
	return ctx.Err()
}

// Holder implements [Locks].
func (m *MemoryLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if l, ok := m.held[name]; ok && now.Before(l.until) {
		return Holder{l.owner, l.until.Sub(now)}, nil
	}
	return Holder{}, ctx.Err()
}

// Len returns how many locks are held.
func (m *MemoryLocks) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, now := 0, time.Now()
	for _, l := range m.held {
		if now.Before(l.until) {
			n++
		}
	}
	return n
}
