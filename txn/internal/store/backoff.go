package store

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Backoff is an exponential backoff with full jitter: the n-th wait, from n = 0, is
// uniformly distributed between 0 and min(Max, Min·2ⁿ).
type Backoff struct{ Min, Max time.Duration }

// A Waiter counts the waits of one retried operation.
type Waiter struct {
	bound, max time.Duration
}

// Start returns a Waiter before its first wait.
func (b Backoff) Start() Waiter { return Waiter{b.Min, b.Max} }

// Wait sleeps for the next jittered interval. If atMost is positive, it sleeps no longer than
// that. If the context ends, it returns the context's error at once.
func (w *Waiter) Wait(ctx context.Context, atMost time.Duration) error {
	d := time.Duration(rand.Int64N(int64(w.bound))) + 1
	w.bound = min(w.bound*2, w.max)
	if atMost > 0 {
		d = min(d, atMost)
	}
	return Sleep(ctx, d)
}

// Sleep waits for d. If the context ends, it returns the context's error at once.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
