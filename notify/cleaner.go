package notify

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A cleaner removes notifications that every observer has acknowledged, in batches: what
// is added during one request is removed by the next. It may lose notifications. The scan
// finds them again, and the check finds them acknowledged.
type cleaner struct {
	client  *txn.Client
	logger  *slog.Logger
	cleared *atomic.Int64 // cells
	wake    chan struct{}

	mu      sync.Mutex
	waiting []changes.Cleared
	stopped chan struct{}
	closed  bool
}

const (
	maxBatch   = 1000   // cells in one request
	maxWaiting = 20_000 // cells in memory; it drops the rest
)

func newCleaner(client *txn.Client, logger *slog.Logger, cleared *atomic.Int64) *cleaner {
	return &cleaner{client: client, logger: logger, cleared: cleared, wake: make(chan struct{}, 1)}
}

func (c *cleaner) start(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped, c.closed = make(chan struct{}), false
	go c.run(ctx, c.stopped)
}

func (c *cleaner) add(d changes.Cleared) {
	c.mu.Lock()
	if len(c.waiting) < maxWaiting {
		c.waiting = append(c.waiting, d)
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

func (c *cleaner) run(ctx context.Context, stopped chan struct{}) {
	defer close(stopped)
	for {
		batch, closed := c.take()
		if len(batch) == 0 {
			if closed {
				return
			}
			<-c.wake
			continue
		}
		if err := changes.ClearNotifications(ctx, c.client, batch...); err != nil {
			c.logger.WarnContext(ctx, "removing notifications failed; a later sweep finds them again", "cells", len(batch), "error", err)
			continue
		}
		c.cleared.Add(int64(len(batch)))
	}
}

func (c *cleaner) take() (batch []changes.Cleared, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), maxBatch)
	batch = c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	return batch, c.closed
}

// stop removes what was added and returns once the cleaner has stopped.
func (c *cleaner) stop() {
	c.mu.Lock()
	c.closed = true
	stopped := c.stopped
	c.mu.Unlock()
	c.signal()
	<-stopped
}
