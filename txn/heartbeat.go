package txn

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
)

// heartbeat keeps the primary lock of a long commit alive by extending its ttl
// (paper §2.2: workers periodically update the wall time while committing). It
// costs nothing until a quarter of Config.LockTTL is over, and can miss one beat
// before the lock expires. Each extension is a
// conditional mutation on the lock at its exact timestamp: it never brings
// back a lock that was rolled back or committed (hazard 6), and leaves alone
// what the commit's predicate looks at.
type heartbeat struct {
	commit *commit
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	beat    sync.WaitGroup
}

// beats is how often the heart beats within Config.LockTTL.
const beats = 4

func startHeartbeat(ctx context.Context, c *commit) *heartbeat {
	h := &heartbeat{commit: c}
	h.ctx, h.cancel = context.WithCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(c.client.cfg.LockTTL/beats, h.fire)
	return h
}

func (h *heartbeat) fire() {
	h.mu.Lock()
	if h.stopped {
		h.mu.Unlock()
		return
	}
	h.beat.Add(1)
	h.mu.Unlock()
	defer h.beat.Done()

	if err := h.extend(); err != nil && h.ctx.Err() == nil {
		h.commit.client.log.WarnContext(h.ctx, "extending the primary lock failed", "primary", h.commit.primary, "start_ts", h.commit.startTS, "error", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped {
		h.timer.Reset(h.commit.client.cfg.LockTTL / beats)
	}
}

// extend writes the primary lock again with the ttl counted up to now.
func (h *heartbeat) extend() error {
	c := h.commit
	row := c.rows[0]
	for _, w := range row.writes {
		if w.cell != c.primary {
			continue
		}
		m := bigtable.NewMutation()
		m.Set(LockFamily, w.cell.Column().key(), c.startTS.Cell(), encodeLock(c.lock(w)))
		// In time for the next beat: one request that hangs must not let the lock
		// expire.
		ctx, cancel := context.WithTimeout(h.ctx, c.client.cfg.LockTTL/beats)
		defer cancel()
		_, err := row.table.checkAndMutate(ctx, row.row, lockAt(w.cell.Column(), c.startTS), m, nil)
		return err
	}
	return nil
}

// stop ends the heartbeat and waits for a beat under way. It may be called
// more than once.
func (h *heartbeat) stop() {
	h.mu.Lock()
	h.stopped = true
	h.timer.Stop()
	h.mu.Unlock()
	h.cancel()
	h.beat.Wait()
}
