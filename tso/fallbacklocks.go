package tso

import (
	"context"
	"errors"
	"sync"
	"time"
)

// FallbackLocks uses first. It uses second for each call that fails with first,
// or for which first takes more than half of the time that ctx leaves. After a
// failure it does not call first for some seconds. So while first is not
// reachable, two owners may hold a lock; locks are advisory.
func FallbackLocks(first, second Locks) Locks { return &fallbackLocks{first: first, second: second} }

const (
	// firstTime is how long a call to the first may take: a change of leader
	// takes about a lease.
	firstTime = 3 * time.Second

	// firstGlance is how long a release may take while the first is down.
	firstGlance = 100 * time.Millisecond

	// firstDown is how long the first is not called after a failure.
	firstDown = 5 * time.Second
)

type fallbackLocks struct {
	first, second Locks

	mu   sync.Mutex
	down time.Time // until then the first is not called
}

func (f *fallbackLocks) isDown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.down)
}

// try makes a call to the first, with a part of the time that ctx leaves, and
// remembers when it fails.
func (f *fallbackLocks) try(ctx context.Context, atMost time.Duration, call func(context.Context) error) error {
	if end, ok := ctx.Deadline(); ok {
		atMost = min(atMost, time.Until(end)/2)
	}
	part, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	err := call(part)
	// A server at its limit answers other calls, for example who holds a lock.
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrLockUnknown) && !errors.Is(err, ErrLimit) {
		f.mu.Lock()
		f.down = time.Now().Add(firstDown)
		f.mu.Unlock()
	}
	return err
}

func (f *fallbackLocks) Acquire(ctx context.Context, name, owner string, ttl time.Duration) (ok bool, by Holder, err error) {
	if err := checkLock(name, owner, ttl); err != nil {
		return false, Holder{}, err
	}
	if !f.isDown() {
		err := f.try(ctx, firstTime, func(ctx context.Context) (err error) {
			ok, by, err = f.first.Acquire(ctx, name, owner, ttl)
			return err
		})
		if err == nil || ctx.Err() != nil {
			return ok, by, err
		}
	}
	return f.second.Acquire(ctx, name, owner, ttl)
}

// Release calls both at the same time, because either may have the lock. In one
// that is not reachable the lock expires.
func (f *fallbackLocks) Release(ctx context.Context, name, owner string) error {
	if err := checkLock(name, owner, 1); err != nil {
		return err
	}
	atMost := firstTime
	if f.isDown() {
		atMost = firstGlance
	}
	var first sync.WaitGroup
	first.Go(func() {
		_ = f.try(ctx, atMost, func(ctx context.Context) error { return f.first.Release(ctx, name, owner) })
	})
	defer first.Wait()
	return f.second.Release(ctx, name, owner)
}

func (f *fallbackLocks) Holder(ctx context.Context, name string) (Holder, error) {
	if err := checkLock(name, name, 1); err != nil {
		return Holder{}, err
	}
	var unknown error
	if !f.isDown() {
		var by Holder
		err := f.try(ctx, firstTime, func(ctx context.Context) (err error) {
			by, err = f.first.Holder(ctx, name)
			return err
		})
		if err == nil && by.Owner != "" || ctx.Err() != nil {
			return by, err
		}
		if errors.Is(err, ErrLockUnknown) {
			unknown = err
		}
	}
	other, err := f.second.Holder(ctx, name)
	if err != nil || other.Owner != "" {
		return other, err
	}
	return Holder{}, unknown // neither has a holder, but the first may know one soon
}
