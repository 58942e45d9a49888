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

// A locker takes advisory locks on cells (paper §2.4: each worker acquires a
// lock from a lightweight lock service before scanning the row). They save runs
// in vain, and nothing depends on them: a lock service that does not answer is
// no reason not to run. Without a service there are none: a lock in a Bigtable
// row costs more than the runs that it saves (docs/design/2026-11-20-advisory-locks.md).
type locker struct {
	locks tso.Locks // nil: none are taken
	owner string
	ttl   time.Duration
}

func newLocker(client *txn.Client, cfg Config) (locker, error) {
	l := locker{locks: cfg.Locks, owner: rand.Text(), ttl: cfg.LockTTL}
	switch {
	case cfg.NoLocks:
		l.locks = nil
	case l.locks == nil:
		locks, cheap, err := changes.AdvisoryLocks(client)
		if err != nil {
			return l, err
		}
		if cheap {
			l.locks = locks
		}
	}
	return l, nil
}

func lockName(cell txn.Cell) string {
	name := "run/" + cell.String()
	if len(name) > 1<<10 {
		sum := sha256.Sum256([]byte(name))
		name = "run/" + cell.Table + "/" + hex.EncodeToString(sum[:])
	}
	return name
}

// wanted reports whether cells are to be looked at under a lock.
func (l locker) wanted() bool { return l.locks != nil }

// acquire reports whether the cell may be worked on.
func (l locker) acquire(ctx context.Context, cell txn.Cell) bool {
	ok, _, err := l.locks.Acquire(ctx, lockName(cell), l.owner, l.ttl)
	return ok || err != nil
}

// hold keeps an acquired lock until release is called.
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
		// What is not released runs out.
		_ = l.locks.Release(rctx, lockName(cell), l.owner)
	}
}
