package txn

import (
	"context"
	"errors"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A heartbeat keeps the primary lock of a long commit alive by extending its ttl (paper §2.2:
// workers periodically update the wall time while committing). It costs nothing in the
// first quarter of Config.LockTTL, and can miss one beat before the lock expires. Each
// extension is a conditional mutation on the lock at its exact timestamp. So it never
// restores a lock that was rolled back or committed (hazard 6), and does not change what the
// commit's predicate checks.
type heartbeat struct {
	commit *commit

	// minCommit is the minimum commit_ts to which readers have raised the lock, and raises
	// how often they did, as far as the heartbeat has read it.
	minCommit tso.Timestamp
	raises    int

	mu      sync.Mutex
	cancel  context.CancelFunc // ends the last beat; nil before the first
	timer   *time.Timer
	stopped bool
	beating sync.WaitGroup
}

// beatsPerTTL is how many beats there are in one Config.LockTTL.
const beatsPerTTL = 4

func (h *heartbeat) start(ctx context.Context, c *commit) {
	h.commit = c
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(c.client.cfg.LockTTL/beatsPerTTL, func() { h.beatOnce(ctx) })
}

// beatOnce extends the lock and schedules the next beat. commit is the commit's context.
func (h *heartbeat) beatOnce(commit context.Context) {
	h.mu.Lock()
	if h.stopped {
		h.mu.Unlock()
		return
	}
	h.beating.Add(1)
	// The request ends before the next beat, so that one hanging request does not let the
	// lock expire.
	ctx, cancel := context.WithTimeout(commit, h.commit.client.cfg.LockTTL/beatsPerTTL)
	defer cancel()
	h.cancel = cancel
	h.mu.Unlock()
	defer h.beating.Done()

	if err := h.extend(ctx); err != nil && commit.Err() == nil && !errors.Is(ctx.Err(), context.Canceled) {
		h.commit.client.resolver.Log.WarnContext(commit, "extending the primary lock failed; other clients may roll the transaction back when the lock expires", "primary", h.commit.primary, "start_ts", h.commit.startTS, "error", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped {
		h.timer.Reset(h.commit.client.cfg.LockTTL / beatsPerTTL)
	}
}

// extend writes the primary lock again, with a ttl that ends Config.LockTTL from now.
func (h *heartbeat) extend(ctx context.Context) error {
	c := h.commit
	row := c.rows[0]
	for _, w := range row.Writes {
		if w.Cell != c.primary {
			continue
		}
		lock := lockOf(c, w)
		return h.rewrite(ctx, row.Table, &lock)
	}
	return nil
}

// rewrite replaces the lock if it is still there. It keeps the minimum commit_ts of a passable
// lock as readers have raised it (recovery/pass.go).
func (h *heartbeat) rewrite(ctx context.Context, t *store.Table, l *format.Lock) error {
	col := l.Cell.Column()
	for {
		l.MinCommitTS, l.Raises = h.minCommit, h.raises
		predicate := store.LockAt(col, l.StartTS)
		if l.Passable {
			predicate = recovery.LockWithMin(col, l.StartTS, h.minCommit, h.minCommit+1)
		}
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, col.Key(), l.StartTS.Cell(), format.EncodeLock(l))
		matched, err := t.CheckAndMutate(ctx, l.Cell.Row, predicate, m, nil)
		if err != nil || matched || !l.Passable {
			return err
		}
		raw, err := t.TryReadRow(ctx, l.Cell.Row, store.LockAt(col, l.StartTS))
		if err != nil || len(raw[format.LockFamily]) == 0 {
			return err
		}
		stored, err := format.DecodeLock(l.Cell, l.StartTS, raw[format.LockFamily][0].Value)
		if err != nil || stored.MinCommitTS <= h.minCommit {
			return err
		}
		h.minCommit, h.raises = stored.MinCommitTS, stored.Raises
	}
}

// stop ends the heartbeat and waits for a beat that is under way. It may be called more than
// once.
func (h *heartbeat) stop() {
	h.mu.Lock()
	h.stopped = true
	h.timer.Stop()
	if h.cancel != nil {
		h.cancel()
	}
	h.mu.Unlock()
	h.beating.Wait()
}
