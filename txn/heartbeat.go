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
// first quarter of lockTTL, and can miss one beat before the lock expires. Each
// extension is a conditional mutation on the lock at its exact timestamp. So it never
// restores a lock that was rolled back or committed (hazard 6), and does not change what the
// commit's predicate checks.
type heartbeat struct {
	commit *commit

	// minCommit is the minimum commit_ts to which the lock was raised, and sealed says that
	// readers may not raise it any more, as far as the heartbeat has read it.
	minCommit tso.Timestamp
	sealed    bool

	mu      sync.Mutex
	cancel  context.CancelFunc // ends the last beat; nil before the first
	timer   *time.Timer
	next    time.Time // of the next beat
	stopped bool
	beating sync.WaitGroup
}

// beatsPerTTL is how many beats there are in one lockTTL.
const beatsPerTTL = 4

func (h *heartbeat) start(ctx context.Context, c *commit) {
	h.commit = c
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next = time.Now().Add(c.lockTTL() / beatsPerTTL)
	h.timer = time.AfterFunc(min(c.client.resolver.Store.StallAfter(), c.lockTTL()/beatsPerTTL), func() { h.beatOnce(ctx) })
}

// beatOnce extends the lock and schedules the next beat. commit is the commit's context.
func (h *heartbeat) beatOnce(commit context.Context) {
	h.mu.Lock()
	if h.stopped {
		h.mu.Unlock()
		return
	}
	h.beating.Add(1)
	if early := time.Until(h.next); early > 0 || h.commit.rows[0].Waits() > 0 { // the primary is not locked
		h.mu.Unlock()
		defer h.beating.Done()
		h.commit.look()
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.stopped {
			h.timer.Reset(h.untilNext())
		}
		return
	}
	// The request ends before the next beat, so that one hanging request does not let the
	// lock expire.
	ctx, cancel := context.WithTimeout(commit, h.commit.lockTTL()/beatsPerTTL)
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
		h.next = time.Now().Add(h.commit.lockTTL() / beatsPerTTL)
		h.timer.Reset(h.untilNext())
	}
}

// untilNext returns how long the timer waits: until the next beat, or until prewrites may have stalled.
// h.mu is held.
func (h *heartbeat) untilNext() time.Duration {
	d := min(h.commit.client.resolver.Store.StallAfter(), h.commit.lockTTL()) / looksPerStall
	if beat := time.Until(h.next); beat > 0 {
		d = min(d, beat)
	}
	return d
}

// looksPerStall is how often the timer fires in the time after which a prewrite counts as stalled.
const looksPerStall = 4

// extend writes the primary lock again, with a ttl that ends lockTTL from now.
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
// lock as it was raised, and the seal (recovery/pass.go). If readers raise the minimum between
// its read of the lock and its write, it goes ahead of them: otherwise the lock of a slow owner
// that is read all the time would expire.
func (h *heartbeat) rewrite(ctx context.Context, t *store.Table, l *format.Lock) error {
	col := l.Cell.Column()
	var ahead tso.Timestamp
	for tries := 0; ; tries++ {
		asked := time.Now()
		l.MinCommitTS, l.Sealed = h.minCommit+ahead, h.sealed
		predicate := store.LockAt(col, l.StartTS)
		if l.Passable {
			predicate = recovery.LockWithMin(col, l.StartTS, h.minCommit, l.MinCommitTS+1)
		}
		m := bigtable.NewMutation()
		m.Set(format.LockFamily, col.Key(), l.StartTS.Cell(), format.EncodeLock(l))
		matched, err := t.CheckAndMutate(ctx, l.Cell.Row, predicate, m, nil)
		if err != nil || !l.Passable {
			return err
		}
		if matched {
			h.minCommit = l.MinCommitTS
			return nil
		}
		raw, err := t.TryReadRow(ctx, l.Cell.Row, store.LockAt(col, l.StartTS))
		if err != nil || len(raw[format.LockFamily]) == 0 {
			return err
		}
		stored, err := format.DecodeLock(l.Cell, l.StartTS, raw[format.LockFamily][0].Value)
		if err != nil || stored.MinCommitTS <= h.minCommit {
			return err
		}
		h.minCommit, h.sealed, ahead = stored.MinCommitTS, stored.Sealed, 0
		if took := time.Since(asked); !h.sealed && (tries > 0 || took >= recovery.SlowOwner) {
			ahead = recovery.AheadOfReaders(took, tries)
		}
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
