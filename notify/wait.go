package notify

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/tso/pause"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// WaitConfig configures [Wait]. The zero value is usable.
type WaitConfig struct {
	// Progress, if set, is called before each pause with the first pending change or
	// lock that the check found.
	// Defaults to nil.
	Progress func(changes.Unfinished)

	// Backoff bounds the pauses between checks.
	// Defaults to 10 ms, growing to 1 second.
	Backoff txn.Backoff
}

// Wait waits until observers have acknowledged every change that was committed before the
// call, and every change that they made because of it. It returns a timestamp at which
// nothing was pending in any table of the deployment. Wait does not wait for changes that
// are committed after that timestamp. If an observer fails on a change, Wait waits until
// the change is acknowledged or a dead letter.
//
// Nothing is pending in a table that was deleted, even if it still has a schema record.
// Writes of other clients to columns without observers do not delay Wait. If clients
// write observed columns all the time, Wait returns once the workers have caught up for a
// moment, so give ctx a deadline. Wait fails with ctx's error, or with the error of a
// request to Bigtable or the oracle, or with txn.ErrInvalid if cfg is invalid. It changes nothing except that it resolves locks of
// dead clients, which may hide changes.
//
// Wait runs no observer itself. Each check scans the metadata families of all tables with
// observers, up to the first thing that it has to wait for; if there are columns for weak
// notifications, it first scans all tables. [changes.FindUnfinished] explains why one
// check is enough.
func Wait(ctx context.Context, client *txn.Client, cfg WaitConfig) (tso.Timestamp, error) {
	err := cmp.Or(
		defaults.Positive("WaitConfig.Backoff.Min", &cfg.Backoff.Min, 10*time.Millisecond),
		defaults.Positive("WaitConfig.Backoff.Max", &cfg.Backoff.Max, time.Second),
	)
	if err != nil {
		return 0, fmt.Errorf("notify: %w: %w", txn.ErrInvalid, err)
	}
	w := &waiter{client: client, cfg: cfg, next: cfg.Backoff.Min}
	for {
		asOf, left, err := w.check(ctx)
		if err != nil || left == nil {
			return asOf, err
		}
		if err := w.pause(ctx, *left); err != nil {
			return 0, err
		}
	}
}

// A waiter is one call of Wait.
type waiter struct {
	client *txn.Client
	cfg    WaitConfig
	next   time.Duration // pause
}

// pause pauses, twice as long as the last time.
func (w *waiter) pause(ctx context.Context, left changes.Unfinished) error {
	if w.cfg.Progress != nil {
		w.cfg.Progress(left)
	}
	if left.Lock == nil && !left.Ran {
		// If it has no journal entry, only a sweep would find it.
		if err := changes.Enter(ctx, w.client, left.TS, left.Cell); err != nil && ctx.Err() == nil {
			return err
		}
	}
	d := w.next
	w.next = min(2*d, max(w.cfg.Backoff.Min, w.cfg.Backoff.Max))
	return pause.For(ctx, pause.Jitter(d))
}

// check takes a timestamp, and finds the first thing that was not finished at that
// timestamp; nil: everything was.
func (w *waiter) check(ctx context.Context) (asOf tso.Timestamp, left *changes.Unfinished, err error) {
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
		if status.Code(err) == codes.NotFound {
			continue
		}
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

// first returns the first thing that is not finished at asOf. A lock hides whether its
// cell has changed, so first waits until the lock is gone. It keeps the same asOf: a later
// one would add the locks of transactions that began after the call of Wait.
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
			if status.Code(err) == codes.NotFound {
				break
			}
			if err != nil {
				return nil, err
			}
			return &u, nil
		}
	}
	return nil, nil
}

// unlocked waits until a row has no lock that counts, and returns what else is not
// finished in the row.
func (w *waiter) unlocked(ctx context.Context, table string, u changes.Unfinished, asOf tso.Timestamp, allLocks bool) (*changes.Unfinished, error) {
	for {
		s, err := admin.Resolve(ctx, w.client, *u.Lock)
		if err != nil {
			return nil, err
		}
		if s.State != txn.StateCommitted && s.State != txn.StateRolledBack {
			// The owner lives, and the lock stays until it commits or rolls back.
			if err := w.pause(ctx, u); err != nil {
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
