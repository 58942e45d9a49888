package txn

import (
	"context"
	"math/rand/v2"
	"time"
)

// A backoff is an exponential backoff with full jitter: the n-th wait is uniformly
// distributed between 0 and min(Max, Min·2ⁿ).
type backoff struct{ Min, Max time.Duration }

// waiter walks through one backoff.
type waiter struct {
	bound, max time.Duration
}

func (b backoff) start() waiter { return waiter{b.Min, b.Max} }

// wait sleeps for the next jittered interval, but no longer than atMost unless
// that is zero. It returns early with the context's error.
func (w *waiter) wait(ctx context.Context, atMost time.Duration) error {
	d := time.Duration(rand.Int64N(int64(w.bound))) + 1
	w.bound = min(w.bound*2, w.max)
	if atMost > 0 {
		d = min(d, atMost)
	}
	return sleep(ctx, d)
}

// sleep waits for d, or returns early with the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
