package notify

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// WaitConfig configures [Wait]. The zero value is usable.
type WaitConfig struct {
	// Progress, when set, is called before each pause with what stands in the way.
	// Defaults to nil.
	Progress func(changes.Unfinished)

	// Backoff paces the looks.
	// Defaults to 10 ms growing to 1 second.
	Backoff txn.Backoff
}

// Wait returns once every change that was committed before the call, and all
// that observers have caused by it, is acknowledged: it returns a timestamp at
// which nothing was left to do in any table of the deployment. Changes that are
// committed after that timestamp are not waited for. Notifications of failing
// observers are waited for until they are dead letters, which are not.
//
// What others write to columns without observers does not hold it up. Where
// observed columns are written all the time, it returns once the workers have
// caught up for a moment, so give ctx a deadline.
//
// It runs no observer itself; it settles locks of dead clients that hide what
// became of their cells. A look costs a scan of the metadata families of every
// table with observers (of every table, twice, where columns are for weak
// notifications), in vain only as far as the first thing found.
//
// How it can be sure is told at [txn.Client.Unfinished].
func Wait(ctx context.Context, client *txn.Client, cfg WaitConfig) (tso.Timestamp, error) {
	if cfg.Backoff.Min <= 0 {
		cfg.Backoff.Min = 10 * time.Millisecond
	}
	if cfg.Backoff.Max <= 0 {
		cfg.Backoff.Max = time.Second
	}
	w := &waiter{client: client, cfg: cfg, pause: cfg.Backoff.Min}
	for {
		asOf, left, err := w.look(ctx)
		if err != nil || left == nil {
			return asOf, err
		}
		if err := w.rest(ctx, *left); err != nil {
			return 0, err
		}
	}
}

// waiter is one call of Wait.
type waiter struct {
	client *txn.Client
	cfg    WaitConfig
	pause  time.Duration
}

// rest waits a little longer than the last time.
func (w *waiter) rest(ctx context.Context, left changes.Unfinished) error {
	if w.cfg.Progress != nil {
		w.cfg.Progress(left)
	}
	d := w.pause
	w.pause = min(2*d, max(w.cfg.Backoff.Min, w.cfg.Backoff.Max))
	return sleep(ctx, jitter(d))
}

// look looks once; left is the first thing that is not finished.
func (w *waiter) look(ctx context.Context) (asOf tso.Timestamp, left *changes.Unfinished, err error) {
	if asOf, err = w.client.Timestamp(ctx); err != nil {
		return 0, nil, err
	}
	tables, err := admin.Tables(ctx, w.client)
	if err != nil {
		return 0, nil, err
	}
	var observed []string
	weak := false
	for _, table := range tables {
		columns, err := changes.ObservedColumns(ctx, w.client, table)
		if err != nil {
			return 0, nil, err
		}
		if len(columns) > 0 {
			observed = append(observed, table)
		}
		for _, c := range columns {
			weak = weak || c.Weak
		}
	}
	if weak {
		if left, err = w.first(ctx, tables, asOf, true); left != nil || err != nil {
			return 0, left, err
		}
	}
	left, err = w.first(ctx, observed, asOf, false)
	return asOf, left, err
}

// first returns the first thing that is not finished. A lock tells nothing
// until it is gone, which is waited for here, at the same asOf: with a new one
// there would be new locks, of transactions that have nothing to do with it.
func (w *waiter) first(ctx context.Context, tables []string, asOf tso.Timestamp, allLocks bool) (*changes.Unfinished, error) {
	for _, table := range tables {
		for u, err := range changes.FindUnfinished(ctx, w.client, table, nil, asOf, allLocks) {
			if err == nil && u.Lock != nil {
				var left *changes.Unfinished
				if left, err = w.unlocked(ctx, table, u, asOf, allLocks); err == nil && left == nil {
					continue
				} else if left != nil {
					u = *left
				}
			}
			if err != nil {
				return nil, err
			}
			return &u, nil
		}
	}
	return nil, nil
}

// unlocked waits until the locks that count are gone from a row, and returns
// what is not finished in it then.
func (w *waiter) unlocked(ctx context.Context, table string, u changes.Unfinished, asOf tso.Timestamp, allLocks bool) (*changes.Unfinished, error) {
	for {
		s, err := admin.Resolve(ctx, w.client, *u.Lock)
		if err != nil {
			return nil, err
		}
		if s.State != txn.StateCommitted && s.State != txn.StateRolledBack {
			// Left alone while its owner lives.
			if err := w.rest(ctx, u); err != nil {
				return nil, err
			}
		}
		locked := false
		for now, err := range changes.FindUnfinished(ctx, w.client, table, bigtable.RowList{u.Cell.Row}, asOf, allLocks) {
			if err != nil {
				return nil, err
			}
			if now.Lock == nil {
				return &now, nil
			}
			u, locked = now, true
		}
		if !locked {
			return nil, nil
		}
	}
}
