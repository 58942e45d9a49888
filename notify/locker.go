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
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A locker takes advisory locks on cells (paper §2.4: each worker takes a lock from a
// lightweight lock service before it scans a row). The locks save double runs. Safety does
// not need them, so the worker also runs observers while the lock service does not answer.
// Without a service the default is no locks: a lock in a Bigtable row costs more than the
// runs that it saves (docs/design/observers.md).
type locker struct {
	locks tso.Locks // nil: no locks
	owner string
	ttl   time.Duration
}

func newLocker(client *txn.Client, cfg Config) locker {
	l := locker{locks: cfg.Locks, owner: rand.Text(), ttl: cfg.LockTTL}
	switch {
	case cfg.NoLocks:
		l.locks = nil
	case l.locks == nil:
		if locks, cheap := changes.AdvisoryLocks(client); cheap {
			l.locks = locks
		}
	}
	return l
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

// acquire reports whether this worker may check the cell: it has the lock, or the lock
// service does not answer.
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
