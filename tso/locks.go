package tso

import (
	"context"
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/tso/internal/locktable"
)

// Locks is the paper's lightweight lock service (§2.4): named, advisory locks
// that expire by themselves. Scanners for notifications take them so that two do
// not work on the same row. A lock may be lost, or two owners may hold it at the
// same time. That must only cost unnecessary work: no guarantee may depend on a
// lock.
//
// Two implementations: [RowLocks] in the metadata table, and [Client.Locks] in
// the memory of the leading server.
type Locks interface {
	// Acquire takes the lock for owner until ttl ends, or renews it if owner
	// holds it. If another owner holds it, acquired is false and by says who
	// holds it and for how much longer. After an error owner may hold it. A server
	// that has no memory left for locks refuses with ErrLimit.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (acquired bool, by Holder, err error)

	// Release removes the lock if owner holds it.
	Release(ctx context.Context, name, owner string) error

	// Holder says who holds the lock; the zero Holder means that it is free. It
	// fails with ErrLockUnknown while the lock service does not know.
	Holder(ctx context.Context, name string) (Holder, error)
}

// Holder says who holds a lock.
type Holder struct {
	Owner string        // empty if the lock is free
	Left  time.Duration // until it expires, unless the owner renews it
}

// ErrLockUnknown says that the lock service lost its memory a moment ago, so that
// a lock that it does not have may be held nevertheless.
var ErrLockUnknown = errors.New("tso: holder of the lock is not known yet")

func checkLock(name, owner string, ttl time.Duration) error {
	return locktable.Check(name, owner, ttl)
}
