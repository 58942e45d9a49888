package tso

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Locks is the paper's lightweight lock service (§2.4): named, advisory locks
// that run out by themselves. Scanners for notifications take them so that two
// do not work on the same row, and workers keep a token there that shows that
// they live (§2.2, see [HoldToken]). Losing a lock, or holding it twice, costs
// work done in vain, never correctness; nothing that has to be right may depend
// on one.
//
// Three implementations: [MemoryLocks] within a process, [RowLocks] in the
// metadata table, and [Client.Locks] in the memory of the leading server.
// [FallbackLocks] joins two.
type Locks interface {
	// Acquire takes the lock for owner until ttl is over, or renews it if owner
	// holds it. When it did not, by says who holds it and for how long yet.
	// After an error owner may hold it.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration) (acquired bool, by Holder, err error)

	// Release gives the lock up if owner holds it.
	Release(ctx context.Context, name, owner string) error

	// Holder says who holds the lock; the zero Holder means nobody. It fails
	// with ErrLockUnknown when that cannot be told yet.
	Holder(ctx context.Context, name string) (Holder, error)
}

// Holder says who holds a lock.
type Holder struct {
	Owner string        // empty: nobody
	Left  time.Duration // until it runs out, unless it is renewed
}

// ErrLockUnknown says that the lock service has lost its memory a moment ago,
// and that a lock which is not there may be held all the same.
var ErrLockUnknown = errors.New("tso: holder of the lock is not known yet")

const (
	// maxLockName bounds names and owners: row keys may have 4 KiB, and prefix
	// and escapes need some.
	maxLockName = 2 << 10

	// maxLockTTL bounds how long a lock that nobody releases is in the way.
	maxLockTTL = 10 * time.Minute

	// lockGrace is how long after a change of leader absent locks are not
	// reported as absent. Holders renew three times per ttl, so those with a
	// ttl of up to 30 seconds are back by then.
	lockGrace = 10 * time.Second
)

func checkLock(name, owner string, ttl time.Duration) error {
	switch {
	case name == "" || len(name) > maxLockName:
		return fmt.Errorf("tso: lock name of %d bytes; it has to be 1 to %d", len(name), maxLockName)
	case owner == "" || len(owner) > maxLockName:
		return fmt.Errorf("tso: lock owner of %d bytes; it has to be 1 to %d", len(owner), maxLockName)
	case ttl <= 0 || ttl > maxLockTTL:
		return fmt.Errorf("tso: lock ttl of %s; it has to be positive and at most %s", ttl, maxLockTTL)
	}
	return nil
}

// MemoryLocks are locks within one process. They are judged by its monotonic
// clock. Make them with [NewMemoryLocks].
type MemoryLocks struct {
	mu    sync.Mutex
	held  map[string]memoryLock
	sweep int       // size of held at which those that ran out are removed
	since time.Time // when the memory was lost; zero: never
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

// minSweep is not worth sweeping.
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
	if !m.since.IsZero() && now.Sub(m.since) < lockGrace {
		return Holder{}, fmt.Errorf("%w: the leader changed %s ago; ask again in %s", ErrLockUnknown, now.Sub(m.since).Round(time.Millisecond), (lockGrace - now.Sub(m.since)).Round(time.Millisecond))
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

// forget drops all locks, and does not say for a while that any is free.
func (m *MemoryLocks) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.held)
	m.since = time.Now()
}

// tokenPrefix is what the lock of a worker's token is named.
const tokenPrefix = "worker/"

// HoldToken keeps a worker's liveness token (paper §2.2) until ctx ends, and
// then removes it. It renews three times per ttl, and goes on when that fails:
// the token is advisory. It returns nil when ctx ends, and an error when
// another worker has the same token.
func HoldToken(ctx context.Context, locks Locks, token string, ttl time.Duration) error {
	if err := checkLock(tokenPrefix+token, token, ttl); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
		defer cancel()
		_ = locks.Release(ctx, tokenPrefix+token, token) // else it runs out
	}()
	tick := time.NewTicker(max(ttl/renewals, 1))
	defer tick.Stop()
	for {
		rctx, cancel := context.WithTimeout(ctx, ttl)
		ok, by, err := locks.Acquire(rctx, tokenPrefix+token, token, ttl)
		cancel()
		if err == nil && !ok {
			return fmt.Errorf("tso: token %q belongs to %q", token, by.Owner)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// TokenAlive reports whether a worker's token is held. An error, ErrLockUnknown
// too, says nothing: assume that the worker lives and let the lock's ttl decide.
func TokenAlive(ctx context.Context, locks Locks, token string) (bool, error) {
	by, err := locks.Holder(ctx, tokenPrefix+token)
	return by.Owner != "", err
}

// FallbackLocks uses first, and second for each call that fails with first, or
// for which first takes more than half of the time there is. A first that failed
// is left alone for some seconds. So while first is out of reach a lock may be
// held twice; that is what advisory means.
func FallbackLocks(first, second Locks) Locks { return &fallbackLocks{first: first, second: second} }

const (
	// firstTime is what the first may take at most: a change of leader takes
	// about a lease.
	firstTime = 3 * time.Second

	// firstGlance is what it may take to release while it is known to be down.
	firstGlance = 100 * time.Millisecond

	// firstDown is how long a first that failed is not asked again.
	firstDown = 5 * time.Second
)

type fallbackLocks struct {
	first, second Locks

	mu   sync.Mutex
	down time.Time // until then the first is not asked
}

func (f *fallbackLocks) isDown() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.down)
}

// try makes a call to the first, with a part of the time that ctx leaves, and
// remembers when it is out of reach.
func (f *fallbackLocks) try(ctx context.Context, atMost time.Duration, call func(context.Context) error) error {
	if end, ok := ctx.Deadline(); ok {
		atMost = min(atMost, time.Until(end)/2)
	}
	part, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	err := call(part)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrLockUnknown) {
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

// Release asks both at once, since the lock may be held in either. In one that
// is out of reach it runs out.
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
	return Holder{}, unknown // neither knows of a holder, but the first may learn
}
