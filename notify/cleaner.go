package notify

import (
	"context"
	"sync"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// The cleaner removes notifications that were dealt with, in batches: what
// arrives while one request is under way goes with the next. What it loses is
// found again, and found to be acknowledged.
type cleaner struct {
	worker *Worker
	wake   chan struct{}

	mu      sync.Mutex
	pending []changes.Cleared
	done    chan struct{}
	closed  bool
}

const (
	maxCleared = 1000   // in one request
	maxPending = 20_000 // in memory; the rest is dropped
)

func newCleaner(w *Worker) *cleaner {
	return &cleaner{worker: w, wake: make(chan struct{}, 1)}
}

func (c *cleaner) start(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done, c.closed = make(chan struct{}), false
	go c.run(ctx, c.done)
}

func (c *cleaner) add(d changes.Cleared) {
	c.mu.Lock()
	if len(c.pending) < maxPending {
		c.pending = append(c.pending, d)
	}
	c.mu.Unlock()
	c.signal()
}

func (c *cleaner) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *cleaner) run(ctx context.Context, done chan struct{}) {
	defer close(done)
	for {
		batch, closed := c.take()
		if len(batch) == 0 {
			if closed {
				return
			}
			<-c.wake
			continue
		}
		if err := changes.ClearNotifications(ctx, c.worker.client, batch...); err != nil {
			c.worker.cfg.Logger.WarnContext(ctx, "removing notifications failed; they are found again", "cells", len(batch), "error", err)
			continue
		}
		c.worker.counters.cleared.Add(int64(len(batch)))
	}
}

func (c *cleaner) take() (batch []changes.Cleared, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.pending), maxCleared)
	batch = c.pending[:n:n]
	c.pending = c.pending[n:]
	return batch, c.closed
}

// stop removes what is pending and ends.
func (c *cleaner) stop() {
	c.mu.Lock()
	c.closed = true
	done := c.done
	c.mu.Unlock()
	c.signal()
	<-done
}
