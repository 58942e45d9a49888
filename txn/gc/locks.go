package gc

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// maxLiveLocks limits the locks that a BlockedError names.
const maxLiveLocks = 100

// lockSize is the size of a lock for the pacer: a read and a write.
const lockSize = 2

// A lockResolver resolves the locks at or below the safe point of a run: every one, of every
// kind and in every table, before anything is removed. The records and marks of their primaries,
// which decide their outcome, are among the garbage. After the fence no new lock can appear there, so
// it is enough to read each table once.
type lockResolver struct {
	run   *run
	mu    sync.Mutex // guards run.report.Locks and live
	began time.Time
	live  *BlockedError // the live transactions for which this collector waits no more
}

// begin notes when this collector begins to resolve locks.
func (l *lockResolver) begin() {
	l.began, l.live = time.Now(), &BlockedError{SafePoint: l.run.report.SafePoint}
}

// blocked returns the error of a collector that waits no more; nil if it waits for nothing.
func (l *lockResolver) blocked() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live == nil || l.live.Count == 0 {
		return nil
	}
	l.run.report.Locks.Live = l.live.Count
	return l.live
}

// part resolves the locks of a part. It waits for live transactions up to LockWait, and never
// rolls them back.
func (l *lockResolver) part(ctx context.Context, tables []*store.Table, w *work) error {
	r := l.run
	for pause := r.client.Store.Config.Backoff.Start(); ; {
		live := &BlockedError{}
		for _, t := range tables {
			rows := w.rows(t.Name)
			if rows.Empty() {
				continue
			}
			r.mu.Lock()
			r.cfg.Progress(Progress{Phase: PhaseLocks, Table: t.Name, Total: r.report.Total})
			r.mu.Unlock()
			if err := l.resolvePart(ctx, t, rows, live); err != nil {
				return err
			}
		}
		switch {
		case live.Count == 0:
			return nil
		case time.Since(l.began) >= r.cfg.LockWait:
			r.measure.lock(ctx, "left", live.Count)
			r.mu.Lock()
			w.stopped = true
			r.mu.Unlock()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.live.Count += live.Count
			l.live.Locks = append(l.live.Locks, live.Locks[:min(len(live.Locks), maxLiveLocks-len(l.live.Locks))]...)
			return nil
		}
		if pause.Wait(ctx, r.cfg.LockWait-time.Since(l.began)) != nil {
			live.SafePoint = r.report.SafePoint
			return store.Ended(ctx, "gc: collecting garbage: waiting for live transactions; nothing was removed", live)
		}
	}
}

func (l *lockResolver) resolvePart(ctx context.Context, t *store.Table, rest store.RowSet, blocked *BlockedError) error {
	r := l.run
	var pieces store.Pieces
	brake := brake{pacer: r.scans}
	filter := store.Interleave(store.Chain(store.WholeFamily(format.LockFamily), store.UpTo(r.report.SafePoint)))
	for !rest.Empty() {
		var page []bigtable.Row
		bytes := 0
		err := brake.scan(ctx, t, rest, func() (err error) {
			rest, err = t.ReadPage(ctx, &pieces, rest, store.MaxPageRows, filter, func(raw bigtable.Row) bool {
				page = append(page, raw)
				bytes += store.RowBytes(raw)
				return bytes < store.MaxPageBytes
			})
			return err
		})
		if err != nil {
			return err
		}
		var locks []*format.Lock
		for _, raw := range page {
			for _, item := range raw[format.LockFamily] {
				_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
				if err != nil {
					return err
				}
				lock, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
				if err != nil {
					return err
				}
				locks = append(locks, lock)
			}
		}
		// One time for all of them: otherwise a lock is alive, and the next one of its transaction
		// has expired, so that the first one goes unnoticed.
		now, err := l.now(ctx, len(locks))
		if err != nil {
			return err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(r.client.Store.Config.Parallelism)
		for _, lock := range locks {
			g.Go(func() error {
				live, err := l.resolve(gctx, lock, now)
				if live {
					l.mu.Lock()
					defer l.mu.Unlock()
					blocked.Count++
					if len(blocked.Locks) < maxLiveLocks {
						blocked.Locks = append(blocked.Locks, *lock)
					}
				}
				return err
			})
		}
		err = g.Wait()
		if len(page) > 0 {
			r.mu.Lock()
			r.cfg.Progress(Progress{Phase: PhaseLocks, Table: t.Name, Row: page[len(page)-1].Key(), Total: r.report.Total})
			r.mu.Unlock()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// now returns the oracle's time, at which so many locks are judged.
func (l *lockResolver) now(ctx context.Context, locks int) (now tso.Timestamp, err error) {
	if locks == 0 {
		return 0, nil
	}
	err = l.run.retry(ctx, func() error {
		now, err = l.run.client.Clock.Timestamp(ctx)
		return err
	})
	return now, err
}

// resolve resolves one lock, as a reader would at oracle time now. live says that its owner is
// alive, so that the lock is still there.
func (l *lockResolver) resolve(ctx context.Context, lock *format.Lock, now tso.Timestamp) (live bool, err error) {
	r := l.run
	var s recovery.Outcome
	err = r.retry(ctx, func() error {
		return r.pacer.Do(ctx, lockSize, func() error {
			if s, err = r.client.FindOutcome(ctx, lock, now, false, recovery.WaitNever); err != nil || !s.Final() {
				return err
			}
			return r.client.ResolveCell(ctx, lock, s)
		})
	})
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &r.report.Locks
	action := "gone"
	switch {
	case s.State == format.StateCommitted:
		action = "rolled forward"
		n.RolledForward++
	case s.State == format.StateRolledBack:
		action = "rolled back"
		n.RolledBack++
	case s.LockGone:
		n.Gone++
	default:
		return true, nil
	}
	n.Found++
	r.measure.lock(ctx, action, 1)
	return false, nil
}
