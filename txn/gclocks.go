package txn

import (
	"context"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"

	"github.com/percolator-bigtable/percolator/tso"
)

// maxLiveLocks bounds the locks that a GCBlockedError names.
const maxLiveLocks = 100

// resolveLocks settles every lock at or below the safe point, of every kind and
// in every table, before anything is removed (design §8 rule 4): what settles
// them, the records and marks of their primaries, is among what goes. Behind the
// fence no new one can come, so one look at each table is enough. Live ones are
// awaited, and never forced.
func (r *gcRun) resolveLocks(ctx context.Context, tables []string) error {
	pause := r.client.store.cfg.Backoff.start()
	for began := time.Now(); ; {
		blocked := &GCBlockedError{SafePoint: r.report.SafePoint}
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
		if pause.wait(ctx, r.cfg.LockWait-time.Since(began)) != nil {
			return ended(ctx, "waiting for live transactions; nothing was removed", blocked)
		}
	}
}

func (r *gcRun) resolveTable(ctx context.Context, name string, blocked *GCBlockedError) error {
	filter := func(*table) bigtable.Filter {
		return interleave(chain(wholeFamily(LockFamily), upTo(r.report.SafePoint)))
	}
	r.cfg.Progress(GCProgress{Phase: GCLocks, Table: name, Total: r.report.Total})
	return r.client.pages(ctx, name, nil, filter, func(t *table, page []bigtable.Row) (bool, error) {
		var locks []*Lock
		for _, raw := range page {
			for _, item := range raw[LockFamily] {
				_, cell, err := metadataCell(t.name, raw.Key(), item)
				if err != nil {
					return false, err
				}
				l, err := decodeLock(cell, tso.FromCell(item.Timestamp), item.Value)
				if err != nil {
					return false, err
				}
				locks = append(locks, l)
			}
		}
		var mu sync.Mutex
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(r.client.store.cfg.Parallelism)
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
			r.cfg.Progress(GCProgress{Phase: GCLocks, Table: name, Row: page[len(page)-1].Key(), Total: r.report.Total})
		}
		return true, err
	})
}

// settle resolves one lock, as anybody else would; live says that its owner is
// alive.
func (r *gcRun) settle(ctx context.Context, l *Lock) (live bool, err error) {
	var s outcome
	err = r.again(ctx, func() error {
		now, err := r.client.clock.timestamp(ctx)
		if err != nil {
			return err
		}
		if s, err = r.client.decide(ctx, l, now, false, waitNever); err != nil || !s.Final() {
			return err
		}
		return r.client.finish(ctx, l, s)
	})
	if err != nil {
		return false, err
	}
	r.locks.Lock()
	defer r.locks.Unlock()
	n := &r.report.Locks
	action := "gone"
	switch {
	case s.State == StateCommitted:
		action = "rolled forward"
		n.RolledForward++
	case s.State == StateRolledBack:
		action = "rolled back"
		n.RolledBack++
	case s.lockGone:
		n.Gone++
	default:
		return true, nil
	}
	n.Found++
	r.measure.lock(ctx, action, 1)
	return false, nil
}
