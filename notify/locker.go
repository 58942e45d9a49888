package notify

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// Locks are advisory locks that expire by themselves, such as [tso.RowLocks].
type Locks interface {
	// Acquire takes the lock for owner until ttl ends, or renews it if owner holds it.
	// If another owner holds it, acquired is false and by says who.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (acquired bool, by tso.Holder, err error)

	// Release removes the lock if owner holds it.
	Release(ctx context.Context, name, owner string) error
}

// A locker takes advisory locks on cells (paper §2.4: each worker takes a lock from a
// lightweight lock service before it scans a row). The locks save double runs. Safety does
// not need them, so the worker also runs observers while the locks do not answer.
type locker struct {
	locks Locks // nil: no locks
	owner string
	ttl   time.Duration
}

func newLocker(cfg Config) locker {
	return locker{locks: cfg.Locks, owner: rand.Text(), ttl: cfg.LockTTL}
}

// maxLockName bounds the name of a lock, in bytes. A cell with a longer name is locked
// by its hash.
const maxLockName = 1 << 10

func lockName(cell txn.Cell) string {
	name := "run/" + cell.String()
	if len(name) > maxLockName {
		sum := sha256.Sum256([]byte(name))
		name = "run/" + cell.Table + "/" + hex.EncodeToString(sum[:])
	}
	return name
}

// wanted reports whether a check of a cell needs its lock.
func (l locker) wanted() bool { return l.locks != nil }

// acquire reports whether this worker may check the cell: it has the lock, or the locks
// do not answer.
func (l locker) acquire(ctx context.Context, cell txn.Cell) bool {
	ok, _, err := l.locks.Acquire(ctx, lockName(cell), l.owner, l.ttl)
	return ok || err != nil
}

// hold renews an acquired lock until release is called.
func (l locker) hold(ctx context.Context, cell txn.Cell) (release func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var renewing sync.WaitGroup
	renewing.Go(func() {
		tick := time.NewTicker(l.ttl / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.acquire(ctx, cell)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		renewing.Wait()
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/3)
		defer cancel()
		// After an error the lock expires.
		_ = l.locks.Release(rctx, lockName(cell), l.owner)
	}
}
