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

// maxLiveLocks bounds the locks that a GCBlockedError names.
const maxLiveLocks = 100

// resolveLocks settles every lock at or below the safe point, of every kind and
// in every table, before anything is removed (design §8 rule 4): what settles
// them, the records and marks of their primaries, is among what goes. Behind the
// fence no new one can come, so one look at each table is enough. Live ones are
// awaited, and never forced.
func (r *run) resolveLocks(ctx context.Context, tables []string) error {
	pause := r.client.Store.Config.Backoff.Start()
	for began := time.Now(); ; {
		blocked := &BlockedError{SafePoint: r.report.SafePoint}
		var left []string
		for _, name := range tables {
			before := blocked.Count
			if err := r.resolveTable(ctx, name, blocked); err != nil {
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
			return store.Ended(ctx, "waiting for live transactions; nothing was removed", blocked)
		}
	}
}

func (r *run) resolveTable(ctx context.Context, name string, blocked *BlockedError) error {
	filter := func(*store.Table) bigtable.Filter {
		return store.Interleave(store.Chain(store.WholeFamily(format.LockFamily), store.UpTo(r.report.SafePoint)))
	}
	r.cfg.Progress(Progress{Phase: Locks, Table: name, Total: r.report.Total})
	return r.client.Pages(ctx, name, nil, filter, func(t *store.Table, page []bigtable.Row) (bool, error) {
		var locks []*format.Lock
		for _, raw := range page {
			for _, item := range raw[format.LockFamily] {
				_, cell, err := format.MetadataCell(t.Name, raw.Key(), item)
				if err != nil {
					return false, err
				}
				l, err := format.DecodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
				if err != nil {
					return false, err
				}
				locks = append(locks, l)
			}
		}
		var mu sync.Mutex
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(r.client.Store.Config.Parallelism)
		for _, l := range locks {
			g.Go(func() error {
				live, err := r.settle(gctx, l)
				if live {
					mu.Lock()
					defer mu.Unlock()
					blocked.Count++
					if len(blocked.Locks) < maxLiveLocks {
						blocked.Locks = append(blocked.Locks, *l)
					}
				}
				return err
			})
		}
		err := g.Wait()
		if len(page) > 0 {
			r.cfg.Progress(Progress{Phase: Locks, Table: name, Row: page[len(page)-1].Key(), Total: r.report.Total})
		}
		return true, err
	})
}

// settle resolves one lock, as anybody else would; live says that its owner is
// alive.
func (r *run) settle(ctx context.Context, l *format.Lock) (live bool, err error) {
	var s recovery.Outcome
	err = r.again(ctx, func() error {
		now, err := r.client.Clock.Timestamp(ctx)
		if err != nil {
			return err
		}
		if s, err = r.client.FindOutcome(ctx, l, now, false, recovery.WaitNever); err != nil || !s.Final() {
			return err
		}
		return r.client.ResolveCell(ctx, l, s)
	})
	if err != nil {
		return false, err
	}
	r.locks.Lock()
	defer r.locks.Unlock()
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
