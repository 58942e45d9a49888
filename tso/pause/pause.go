// Package pause waits: between retries, polls and sweeps of this module's packages.
package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits until d has passed and returns nil, or returns the context's error as soon
// as ctx ends.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Jitter returns a random duration between d/2 and d, so that clients that failed at the
// same time do not retry at the same time. d must not be negative.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
