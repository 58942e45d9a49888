package txn

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolator-bigtable/percolator/tso"
)

// Update runs f in a read-write transaction, commits it, and returns the
// commit timestamp.
//
// f may run more than once: after a conflict (ErrConflict, from Commit or
// returned by f) the transaction is rolled back, Update waits with jittered
// exponential backoff, and f runs again in a new transaction with a new start
// timestamp. f must not keep results of an earlier run, and must not have side
// effects that are wrong to repeat. f reads and writes through the Txn it is
// given and uses the context it is given; it must not call Commit or Rollback.
//
// Update stops when the transaction committed; when f returns an error that is
// not a conflict, which is returned as it is, with nothing committed; when ctx
// ends or the attempts are used up, with an error that tells the last conflict
// (errors.Is with the context's error holds); or when a commit's outcome is
// unknown (ErrUndetermined): then f is not run again, because its effects may
// be there already. Set a deadline on ctx.
//
// A transaction that wrote nothing returns its start timestamp.
func (c *Client) Update(ctx context.Context, f func(ctx context.Context, tx *Txn) error, opts ...TxnOption) (tso.Timestamp, error) {
	limit := c.cfg.MaxAttempts
	pause := c.cfg.Backoff.start()
	for attempt := 1; ; attempt++ {
		ts, o, err := c.attempt(ctx, f, opts)
		if err == nil {
			return ts, nil
		}
		if o.maxAttempts > 0 {
			limit = o.maxAttempts
		}
		switch {
		case !errors.Is(err, ErrConflict) || errors.Is(err, ErrUndetermined):
			return 0, err
		case limit > 0 && attempt >= limit:
			return 0, fmt.Errorf("txn: giving up after %d attempts: %w", attempt, err)
		}
		if pause.wait(ctx, 0) != nil {
			return 0, ended(ctx, fmt.Sprintf("conflict in attempt %d", attempt), err)
		}
		c.counters.retries.Add(1)
	}
}

func (c *Client) attempt(ctx context.Context, f func(context.Context, *Txn) error, opts []TxnOption) (tso.Timestamp, txnOptions, error) {
	tx, err := c.Begin(ctx, opts...)
	if err != nil {
		return 0, txnOptions{}, err
	}
	defer tx.Rollback() // f may panic
	if err := f(ctx, tx); err != nil {
		return 0, tx.opts, err
	}
	ts, err := tx.Commit(ctx)
	return ts, tx.opts, err
}
