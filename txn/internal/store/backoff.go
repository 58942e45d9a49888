package store

import (
	"context"
	"math/rand/v2"
	"time"
)

// A backoff is an exponential backoff with full jitter: the n-th wait is uniformly
// distributed between 0 and min(Max, Min·2ⁿ).
type Backoff struct{ Min, Max time.Duration }

// Waiter walks through one backoff.
type Waiter struct {
	bound, max time.Duration
}

func (b Backoff) Start() Waiter { return Waiter{b.Min, b.Max} }

// Wait sleeps for the next jittered interval, but no longer than atMost unless
// that is zero. It returns early with the context's error.
func (w *Waiter) Wait(ctx context.Context, atMost time.Duration) error {
	d := time.Duration(rand.Int64N(int64(w.bound))) + 1
	w.bound = min(w.bound*2, w.max)
	if atMost > 0 {
		d = min(d, atMost)
	}
	return Sleep(ctx, d)
}

// Sleep waits for d, or returns early with the context's error.
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
