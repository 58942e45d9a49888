package tso_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// stuckLocks answer nothing until the context ends.
type stuckLocks struct {
	mu    sync.Mutex
	calls int
}

func (l *stuckLocks) stuck(ctx context.Context) error {
	l.mu.Lock()
	l.calls++
	l.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (l *stuckLocks) Acquire(ctx context.Context, _, _ string, _ time.Duration) (bool, tso.Holder, error) {
	return false, tso.Holder{}, l.stuck(ctx)
}
func (l *stuckLocks) Release(ctx context.Context, _, _ string) error { return l.stuck(ctx) }
func (l *stuckLocks) Holder(ctx context.Context, _ string) (tso.Holder, error) {
	return tso.Holder{}, l.stuck(ctx)
}

// TestFallbackLocksLeaveTimeForTheSecond: a first that hangs does not use up the
// time of the second, and costs it once in a while only.
func TestFallbackLocksLeaveTimeForTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := &stuckLocks{}, tso.NewMemoryLocks()
		locks := tso.FallbackLocks(first, second)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tso.HoldToken(ctx, locks, "w", 6*time.Second) }()
		tsotest.Advance(4 * time.Second)
		for range 56 {
			if second.Len() != 1 {
				t.Fatal("the token is not held in the second")
			}
			tsotest.Advance(time.Second)
		}
		start := time.Now()
		for range 10 {
			if ok, _, err := locks.Acquire(t.Context(), "l", "x", time.Minute); err != nil || !ok {
				t.Error(ok, err)
			}
			if by, err := locks.Holder(t.Context(), "l"); err != nil || by.Owner != "x" {
				t.Error(by, err)
			}
			if err := locks.Release(t.Context(), "l", "x"); err != nil {
				t.Error(err)
			}
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("30 calls took %s", d)
		}
		calls := first.calls
		if err := locks.Release(t.Context(), "l", "x"); err != nil || first.calls != calls+1 {
			t.Errorf("the first was not asked to release: %v", err)
		}
		cancel()
		start = time.Now()
		if err := <-ended; err != nil || time.Since(start) > 4*time.Second || second.Len() != 0 {
			t.Errorf("%v after %s, %d locks left", err, time.Since(start), second.Len())
		}
	})
}

// lateLocks take a second to release a lock.
type lateLocks struct{ *tso.MemoryLocks }

func (l lateLocks) Release(ctx context.Context, name, owner string) error {
	select {
	case <-time.After(time.Second):
		return l.MemoryLocks.Release(ctx, name, owner)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestFallbackLocksWaitForTheFirst: a first that answers late, as during a change of leader,
// releases its lock.
func TestFallbackLocksWaitForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := lateLocks{tso.NewMemoryLocks()}, tso.NewMemoryLocks()
		locks := tso.FallbackLocks(first, second)
		if ok, _, err := locks.Acquire(t.Context(), "l", "x", time.Minute); err != nil || !ok || first.Len() != 1 {
			t.Fatal(ok, err, first.Len())
		}
		if err := locks.Release(t.Context(), "l", "x"); err != nil || first.Len() != 0 {
			t.Errorf("%v, %d locks left", err, first.Len())
		}
	})
}

// TestFallbackLocksReturnToTheFirst once it is back.
func TestFallbackLocksReturnToTheFirst(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		second := tso.NewMemoryLocks()
		locks := tso.FallbackLocks(c.Client(tso.ClientConfig{Timeout: time.Second}, "a").Locks(), second)
		for i, want := range []int{1, 1, 0} {
			if ok, _, err := locks.Acquire(t.Context(), "l", "x", 2*time.Second); err != nil || !ok || second.Len() != want {
				t.Errorf("%t, %v, %d locks in the second, want %d", ok, err, second.Len(), want)
			}
			if i == 0 {
				c.Start("a", server.Config{})
			}
			tsotest.Advance(3 * time.Second)
		}
	})
}

// TestTimeOfTheFirst: a first that hangs gets 3 seconds, or half of the time that the caller has, and a
// tenth of a second for a release while it is down. It does not get requests that are not valid.
func TestTimeOfTheFirst(t *testing.T) {
	for _, tt := range []struct{ deadline, took time.Duration }{{0, 3 * time.Second}, {2 * time.Second, time.Second}, {time.Minute, 3 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if tt.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.deadline)
				defer cancel()
			}
			first := &stuckLocks{}
			locks := tso.FallbackLocks(first, tso.NewMemoryLocks())
			_, _, acquire := locks.Acquire(ctx, "", "x", time.Minute)
			_, holder := locks.Holder(ctx, "")
			if release := locks.Release(ctx, "", "x"); acquire == nil || holder == nil || release == nil || first.calls != 0 {
				t.Errorf("without a name: %v, %v, %v, %d calls", acquire, holder, release, first.calls)
			}
			began := time.Now()
			if ok, _, err := locks.Acquire(ctx, "l", "x", time.Minute); !ok || err != nil || time.Since(began) != tt.took || first.calls != 1 {
				t.Errorf("of %v: %t, %v after %v", tt.deadline, ok, err, time.Since(began))
			}
			began = time.Now()
			if err := locks.Release(ctx, "l", "x"); err != nil || time.Since(began) != 100*time.Millisecond || first.calls != 2 {
				t.Errorf("released: %v after %v", err, time.Since(began))
			}
		})
	}
}
