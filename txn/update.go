package txn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
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
// A transaction that garbage collection has passed (ErrTooOld) is run again in
// the same way, once: a process may have been stopped for hours. A second time
// in a row means that f takes longer than versions are kept, and is returned.
//
// Update stops when the transaction committed; when f returns an error that is
// neither of these, which is returned as it is, with nothing committed; when ctx
// ends or the attempts are used up, with an error that tells the last conflict
// (errors.Is with the context's error holds); or when a commit's outcome is
// unknown (ErrUndetermined): then f is not run again, because its effects may
// be there already. That of another transaction, which f has made, is f's matter:
// ErrUndetermined does not hold for it here. Set a deadline on ctx.
//
// A transaction that wrote nothing returns its start timestamp.
func (c *Client) Update(ctx context.Context, f func(ctx context.Context, tx *Txn) error, opts ...TxnOption) (tso.Timestamp, error) {
	pause := c.retryBackoff().Start()
	wasTooOld := false
	run := attempt{again: true}
	defer run.drop()
	for run.number = 1; ; run.number++ {
		ts, o, err := c.attempt(ctx, &run, f, opts)
		if err == nil {
			return ts, nil
		}
		tooOld := o.becameTooOld
		again := errors.Is(err, ErrConflict) || (tooOld && !wasTooOld)
		wasTooOld = tooOld
		limit := o.maxAttempts
		switch {
		case !again || errors.Is(err, ErrUndetermined):
			return 0, err
		case limit > 0 && run.number >= limit:
			return 0, fmt.Errorf("txn: giving up after %d attempts: %w", run.number, err)
		}
		if c.beforeNext(ctx, &run, &pause, err) != nil {
			return 0, store.Ended(ctx, fmt.Sprintf("waiting after attempt %d", run.number), err)
		}
		c.Counters.Retries.Add(1)
		c.measure.retry(ctx, o.name)
		c.Trace.Retry(ctx, o.name, run.number+1, err)
	}
}

// maxRetryPause bounds the pause between two runs of Update's function.
const maxRetryPause = 250 * time.Millisecond

func (c *Client) retryBackoff() store.Backoff {
	return store.Backoff{Min: min(c.Store.Config.Backoff.Min, maxRetryPause), Max: min(c.Store.Config.Backoff.Max, maxRetryPause)}
}

func (c *Client) attempt(ctx context.Context, run *attempt, f func(context.Context, *Txn) error, opts []TxnOption) (tso.Timestamp, txnOptions, error) {
	tx, err := c.begin(ctx, run, opts)
	if err != nil {
		return 0, txnOptions{}, err
	}
	run.early = false
	defer func() {
		tx.Rollback() // f may panic
		if !run.early {
			run.drop() // f did not come to its commit
		}
	}()
	var ts tso.Timestamp
	if err = f(tx.within(ctx), tx); err == nil {
		ts, err = tx.Commit(ctx)
	} else if errors.Is(err, ErrUndetermined) {
		err = &functionError{err}
	}
	if err == nil {
		return ts, tx.opts, nil
	}
	// Of this transaction, not of some snapshot that f has taken.
	var old *TooOldError
	tx.opts.becameTooOld = errors.As(err, &old) && old.TS == tx.startTS
	return 0, tx.opts, err
}

// A functionError is that of a function that could not find out what came of a
// transaction of its own. Nothing of the one that it ran in is committed.
type functionError struct{ err error }

func (e *functionError) Error() string {
	return fmt.Sprintf("nothing of this transaction was committed: %v", e.err)
}

func (e *functionError) Is(target error) bool {
	return target != ErrUndetermined && errors.Is(e.err, target)
}

func (e *functionError) As(target any) bool {
	if _, ok := target.(**UndeterminedError); ok {
		return false
	}
	return errors.As(e.err, target)
}

// beforeNext waits before the next run of a function: with jittered exponential
// backoff, unless the conflict was with a transaction of this client, and then in
// the queue of its cells, which the next run's start_ts comes after. Whoever
// waits for the time to pass holds nobody up.
func (c *Client) beforeNext(ctx context.Context, run *attempt, pause *store.Waiter, conflict error) error {
	if run.early && run.wasEarly {
		run.drop() // another process's commits
	}
	early := run.early && !run.wasEarly
	if run.wasEarly = run.early; !early {
		if err := pause.Wait(ctx, 0); err != nil {
			return err
		}
	}
	granted, err := c.requeue(ctx, run)
	if err == nil && !granted && early {
		err = pause.Wait(ctx, 0)
	}
	return err
}

// An attempt is one run of a function given to Update.
type attempt struct {
	number int
	// earlier is the span of the attempt before.
	earlier trace.SpanContext

	// again: Update runs the function again after a conflict. early: the last run
	// ended in one that was known before its prewrite. slots are the latches of the
	// cells that it wrote, latch what is held of them for the next run.
	again    bool
	early    bool
	wasEarly bool // and the one before
	slots    []uint16
	latch    *latch

	// next is the start timestamp of the next attempt; nil: not asked for.
	next *start
}
