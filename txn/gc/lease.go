package gc

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/gctime"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

const leaseName = "gc"

// A lease says which collector leads a run. It is advisory: two collectors that lead do the same
// work twice, and no harm (docs/gc.md).
type lease struct {
	locks interface {
		Acquire(ctx context.Context, name, owner string, ttl time.Duration) (acquired bool, by tso.Holder, err error)
		Release(ctx context.Context, name, owner string) error
	}
	owner   string
	cancel  context.CancelFunc
	lost    atomic.Pointer[BusyError] // names the collector that took it
	stopped chan struct{}
}

func leaseLocks(c *recovery.Resolver) *tso.RowLocks {
	return tso.NewRowLocks(c.Metadata.API, c.Clock.Oracle, tso.RowLocksConfig{RPCTimeout: c.Store.Config.RPCTimeout})
}

// newOwner returns the name of a collector.
func newOwner() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:6])
}

func leaseHolder(ctx context.Context, c *recovery.Resolver) (tso.Holder, error) {
	return leaseLocks(c).Holder(ctx, leaseName)
}

// takeLease takes the lease and renews it until release is called. The returned
// context ends when the lease is lost. It fails with a BusyError if another
// collector has the lease.
func takeLease(ctx context.Context, c *recovery.Resolver, owner string) (*lease, context.Context, error) {
	locks := leaseLocks(c)
	l := &lease{locks: locks, owner: owner, stopped: make(chan struct{})}
	ok, by, err := locks.Acquire(ctx, leaseName, l.owner, gctime.LeaseTTL())
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil, store.Ended(ctx, "gc: taking the lease of garbage collection", err)
		}
		return nil, nil, fmt.Errorf("gc: taking the lease: %w", err)
	}
	if !ok {
		return nil, nil, &BusyError{Holder: by.Owner, Left: by.Left}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	go l.renew(ctx, c)
	return l, ctx, nil
}

func (l *lease) renew(ctx context.Context, c *recovery.Resolver) {
	defer close(l.stopped)
	ttl := gctime.LeaseTTL()
	tick := time.NewTicker(ttl / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rctx, cancel := context.WithTimeout(ctx, ttl/3)
		ok, by, err := l.locks.Acquire(rctx, leaseName, l.owner, ttl)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			// The next attempt notices another collector that took the lease.
			c.Log.WarnContext(ctx, "renewing the lease of garbage collection failed", "error", err)
		case err == nil && !ok:
			l.lost.Store(&BusyError{Holder: by.Owner, Left: by.Left, Lost: true})
			l.cancel()
			return
		}
	}
}

// Exclude keeps collectors from working until release is called. The returned context ends
// before that if another collector takes the lease. Exclude fails with a [BusyError] if a
// collector works now.
func Exclude(ctx context.Context, client *txn.Client) (excluded context.Context, release func(), err error) {
	c := access.ResolverOf(client)
	r, err := newRun(c, Config{})
	if err != nil {
		return nil, nil, err
	}
	lease, excluded, err := takeLease(ctx, c, r.owner)
	if err != nil {
		return nil, nil, err
	}
	// A collector that shares a run has no lease. It writes its name into the record, and then
	// looks for the lease.
	if err := noCollectors(ctx, r); err != nil {
		lease.release(ctx)
		return nil, nil, err
	}
	return excluded, func() { lease.release(ctx) }, nil
}

// explain replaces the error of a run that stopped because it lost the lease.
func (l *lease) explain(err error) error {
	if lost := l.lost.Load(); err != nil && lost != nil {
		return lost
	}
	return err
}

func (l *lease) release(ctx context.Context) {
	l.cancel()
	<-l.stopped
	// ctx may have ended, and the next run must not wait for the lease.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = l.locks.Release(ctx, leaseName, l.owner) // the lease expires if this fails
}
