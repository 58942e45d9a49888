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

// A lockResolver resolves the locks at or below the safe point of a run.
type lockResolver struct {
	run *run
	mu  sync.Mutex // guards run.report.Locks and the BlockedError of resolveAll
}

// resolveAll resolves every lock at or below the safe point, of every kind and
// in every table, before anything is removed: the records and marks of their
// primaries, which decide their outcome, are among the garbage. After the fence no
// new lock can appear there, so it is enough to read each table once. It waits for
// live transactions, and never rolls them back.
func (l *lockResolver) resolveAll(ctx context.Context, tables []string) error {
	r := l.run
	pause := r.client.Store.Config.Backoff.Start()
	for began := time.Now(); ; {
		blocked := &BlockedError{SafePoint: r.report.SafePoint}
		var left []string
		for _, name := range tables {
			before := blocked.Count
			if err := l.resolveTable(ctx, name, blocked); err != nil {
				return err
			}
			if blocked.Count > before {
				left = append(left, name)
			}
		}
		r.report.Locks.Live = blocked.Count
		switch {
		case blocked.Count == 0:
			return nil
		case time.Since(began) >= r.cfg.LockWait:
			r.measure.lock(ctx, "left", blocked.Count)
			return blocked
		}
		tables = left
		if pause.Wait(ctx, r.cfg.LockWait-time.Since(began)) != nil {
			return store.Ended(ctx, "gc: collecting garbage: waiting for live transactions; nothing was removed", blocked)
		}
	}
}

// resolveTable resolves the locks of a table, and adds those of live owners to
// blocked.
func (l *lockResolver) resolveTable(ctx context.Context, name string, blocked *BlockedError) error {
	r := l.run
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(store.Chain(store.WholeFamily(format.LockFamily), store.UpTo(r.report.SafePoint)))
	}
	r.cfg.Progress(Progress{Phase: PhaseLocks, Table: name, Total: r.report.Total})
	t, err := r.client.Table(ctx, name)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.streams)
	for _, part := range r.parts(ctx, t, "") {
		g.Go(func() error { return l.resolvePart(gctx, name, part.Request(false), filter, blocked) })
	}
	return g.Wait()
}

func (l *lockResolver) resolvePart(ctx context.Context, name string, part bigtable.RowSet, filter func(*store.Table) bigtable.Filter, blocked *BlockedError) error {
	r := l.run
	return r.client.Pages(ctx, name, part, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
		var locks []*format.Lock
		for _, raw := range page {
			for _, item := range raw[format.LockFamily] {
				_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
				if err != nil {
					return false, err
				}
				lock, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
				if err != nil {
					return false, err
				}
				locks = append(locks, lock)
			}
		}
		// One time for all of them: otherwise a lock is alive, and the next one of its transaction
		// has expired, so that the first one goes unnoticed.
		now, err := l.now(ctx, len(locks))
		if err != nil {
			return false, err
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
			defer r.mu.Unlock()
			r.cfg.Progress(Progress{Phase: PhaseLocks, Table: name, Row: page[len(page)-1].Key(), Total: r.report.Total})
		}
		return true, err
	})
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
		if s, err = r.client.FindOutcome(ctx, lock, now, false, recovery.WaitNever); err != nil || !s.Final() {
			return err
		}
		return r.client.ResolveCell(ctx, lock, s)
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
