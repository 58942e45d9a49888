package tso

import (
	"context"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/locktable"
)

// MemoryLocks are locks within one process. They expire by its monotonic clock.
// Make them with [NewMemoryLocks].
type MemoryLocks struct{ table *locktable.Table }

var _ Locks = (*MemoryLocks)(nil)

// NewMemoryLocks returns an empty set of locks.
func NewMemoryLocks() *MemoryLocks { return &MemoryLocks{locktable.New(0, 0)} }

// Acquire implements [Locks].
func (m *MemoryLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, Holder, error) {
	if err := ctx.Err(); err != nil {
		return false, Holder{}, err
	}
	ok, by, err := m.table.Acquire(name, owner, ttl, nil)
	return ok, Holder(by), err
}

// Release implements [Locks].
func (m *MemoryLocks) Release(ctx context.Context, name, owner string) error {
	if err := m.table.Release(name, owner); err != nil {
		return err
	}
	return ctx.Err()
}

// Holder implements [Locks].
func (m *MemoryLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := ctx.Err(); err != nil {
		return Holder{}, err
	}
	by, err := m.table.Holder(name)
	return Holder(by), err
}

// Len returns how many locks are held.
func (m *MemoryLocks) Len() int { return m.table.Len() }
