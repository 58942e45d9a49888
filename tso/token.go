package tso

import (
	"context"
	"fmt"
	"time"
)

const (
	// tokenPrefix begins the name of the lock that a worker's token is.
	tokenPrefix = "worker/"

	// tokenRenewals is how often a worker renews its token within the ttl, so
	// that one failure does not lose the token.
	tokenRenewals = 3
)

// HoldToken keeps a worker's liveness token (paper §2.2) until ctx ends, and
// then removes it. It renews the token three times per ttl. It ignores failures
// to renew, because the token is advisory. It returns nil when ctx ends, and an
// error when another worker has the same token.
func HoldToken(ctx context.Context, locks Locks, token string, ttl time.Duration) error {
	if err := checkLock(tokenPrefix+token, token, ttl); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
		defer cancel()
		_ = locks.Release(ctx, tokenPrefix+token, token) // if that fails, it expires
	}()
	tick := time.NewTicker(max(ttl/tokenRenewals, 1))
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

// TokenAlive reports whether a worker holds its token. After an error, also
// after ErrLockUnknown, assume that the worker is alive and wait for the ttl of
// its transaction's locks.
func TokenAlive(ctx context.Context, locks Locks, token string) (bool, error) {
	by, err := locks.Holder(ctx, tokenPrefix+token)
	return by.Owner != "", err
}
