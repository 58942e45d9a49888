package notify_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// An oracleWithLocks has a lock service, as the timestamp server does.
type oracleWithLocks struct {
	tso.Oracle
	countedLocks
}

func (o *oracleWithLocks) Locks() tso.Locks { return &o.countedLocks }

// freeLocks are locks that no other worker holds.
type freeLocks struct{}

func (freeLocks) Acquire(_ context.Context, _, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	return true, tso.Holder{Owner: owner, Left: ttl}, nil
}
func (freeLocks) Release(context.Context, string, string) error      { return nil }
func (freeLocks) Holder(context.Context, string) (tso.Holder, error) { return tso.Holder{}, nil }

type countedLocks struct {
	tso.Locks
	acquired atomic.Int32
}

func (l *countedLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (bool, tso.Holder, error) {
	l.acquired.Add(1)
	return l.Locks.Acquire(ctx, name, owner, ttl)
}

// TestLocksOfTheOracle: by default a worker uses the oracle's lock service, and no locks in rows.
func TestLocksOfTheOracle(t *testing.T) {
	for _, tt := range []struct {
		name    string
		noLocks bool
		want    bool
	}{{"default", false, true}, {"no locks", true, false}} {
		t.Run(tt.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, env *txntest.Env) {
				register(t, env.Client, input, "o", false)
				oracle := &oracleWithLocks{Oracle: env.Oracle(), countedLocks: countedLocks{Locks: freeLocks{}}}
				served := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute, Oracle: oracle}), notify.Config{NoLocks: tt.noLocks})
				handle(t, served, "o", input, observeEffect)
				stop := start(t, served)
				put(t, env.Client, input, "row", "v")
				wait(t, env.Client)
				if err := stop(); err != nil {
					t.Error(err)
				}
				if n := oracle.acquired.Load(); (n > 0) != tt.want {
					t.Errorf("%d locks of the service were acquired", n)
				}
			})
		})
	}
	virtual(t, func(t *testing.T, env *txntest.Env) {
		register(t, env.Client, input, "o", false)
		faults := txntest.NewFaults(t)
		w := newWorker(t, env.NewClient(txn.Config{TokenTTL: time.Minute}, faults.DialOptions()...), notify.Config{})
		handle(t, w, "o", input, observeEffect)
		start(t, w)
		put(t, env.Client, input, "row", "v")
		wait(t, env.Client)
		if n := faults.Count()[txntest.StepLock]; n > 0 {
			t.Errorf("%d requests for locks in rows", n)
		}
	})
}
