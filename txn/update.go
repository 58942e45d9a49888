package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/latch"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// update does the work of Client.Update.
func update(ctx context.Context, c *Client, f func(ctx context.Context, tx *Txn) error, opts []TxnOption) (tso.Timestamp, error) {
	pause := retryBackoff(c).Start()
	wasTooOld := false
	run := attempt{inUpdate: true}
	defer run.releaseLatch()
	for run.number = 1; ; run.number++ {
		ts, o, err := runAttempt(ctx, c, &run, f, opts)
		tooOld := o.becameTooOld
		again := errors.Is(err, ErrConflict) || (tooOld && !wasTooOld)
		wasTooOld = tooOld
		if errors.Is(err, ErrUndetermined) {
			again = false
		}
		limit := o.maxAttempts
		run.ended(ctx, err, again && (limit == 0 || run.number < limit))
		switch {
		case err == nil:
			return ts, nil
		case !again:
			return 0, err
		case limit > 0 && run.number >= limit:
			return 0, fmt.Errorf("txn: giving up after %d attempts: %w", run.number, err)
		}
		if ended := waitBeforeRetry(ctx, c, &run, &pause, err); ended != nil {
			if ctx.Err() == nil {
				return 0, ended
			}
			return 0, store.Ended(ctx, fmt.Sprintf("txn: waiting after attempt %d", run.number), err)
		}
		c.resolver.Counters.Retries.Add(1)
		c.metrics.Retry(ctx, o.name)
		c.resolver.Trace.Retry(ctx, o.name, run.number+1, err)
	}
}

// maxRetryPause bounds the pause between two runs of Update's function.
const maxRetryPause = 250 * time.Millisecond

func retryBackoff(c *Client) store.Backoff {
	return store.Backoff{Min: min(c.resolver.Store.Config.Backoff.Min, maxRetryPause), Max: min(c.resolver.Store.Config.Backoff.Max, maxRetryPause)}
}

// runAttempt runs f in a transaction and commits it. The options it returns say whether
// garbage collection has passed the transaction.
func runAttempt(ctx context.Context, c *Client, run *attempt, f func(context.Context, *Txn) error, opts []TxnOption) (tso.Timestamp, txnOptions, error) {
	tx, err := begin(ctx, c, run, opts)
	if err != nil {
		return 0, txnOptions{}, err
	}
	run.conflictedEarly = false
	defer func() {
		tx.Rollback() // f may panic
		if !run.conflictedEarly {
			run.releaseLatch() // this attempt did not keep it for the next one
		}
	}()
	var ts tso.Timestamp
	err = f(withAttempt(tx.withTrace(ctx), run.number), tx)
	switch {
	case tx.commitCalled:
		// Another run could commit the writes twice.
		return 0, tx.opts, commitInside(err)
	case err == nil:
		ts, err = tx.Commit(ctx)
	case errors.Is(err, ErrUndetermined):
		err = &functionError{err}
	}
	if err == nil {
		c.latches.Won(run.rows)
		return ts, tx.opts, nil
	}
	// Only if the error is about this transaction, not about a snapshot that f has taken.
	var old *TooOldError
	tx.opts.becameTooOld = errors.As(err, &old) && old.TS == tx.startTS
	return 0, tx.opts, err
}

// commitInside is the error of a function that called Commit and returned err. It matches no
// conflict, because the function must not run again.
func commitInside(err error) error {
	const says = "the function given to Update called Commit, which only Update may do; whether the writes are visible, that call has returned"
	switch {
	case err == nil:
		return fmt.Errorf("txn: %w: %s", ErrDone, says)
	case errors.Is(err, ErrConflict):
		return fmt.Errorf("txn: %w: %s (%v)", ErrDone, says, err)
	}
	return fmt.Errorf("txn: %w: %s (%w)", ErrDone, says, err)
}

// A functionError wraps the error of a function that ran a transaction of its own, whose
// outcome is unknown. Nothing of the transaction that the function ran in is committed, so
// ErrUndetermined does not hold for it.
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

// waitBeforeRetry waits before the next attempt. After a conflict that needed a request it
// waits with jittered exponential backoff. After an early conflict, mostly with a
// transaction of this client, it waits for the latch of the cells instead, so that the next
// start_ts is above that transaction's commit_ts. An attempt that waits for its backoff
// holds no latch.
func waitBeforeRetry(ctx context.Context, c *Client, run *attempt, pause *store.Waiter, conflict error) error {
	if err := c.awaitStalled(ctx, conflict); err != nil {
		return err
	}
	if run.conflictedEarly && run.previousConflictedEarly {
		run.releaseLatch() // twice in a row: the commits are another process's
	}
	early := run.conflictedEarly && !run.previousConflictedEarly
	if run.previousConflictedEarly = run.conflictedEarly; !early {
		if err := pause.Wait(ctx, 0); err != nil {
			return err
		}
	}
	granted, err := takeLatchForRetry(ctx, c, run)
	if err == nil && !granted && early {
		err = pause.Wait(ctx, 0)
	}
	return err
}

// An attempt is the current run of a function given to Update, with what the previous run left
// for it. Begin uses one as well.
type attempt struct {
	number       int               // from 1
	previousSpan trace.SpanContext // of the previous attempt

	// inUpdate says that Update runs the function again after a conflict.
	inUpdate bool
	// conflictedEarly says that the last commit failed because of a conflict that was
	// known before its prewrite; previousConflictedEarly says so of the commit before.
	conflictedEarly, previousConflictedEarly bool
	// rows are what the last commit wrote. latch is what is held of their cells for the next
	// attempt, and what the current one holds before its commit.
	rows      []*store.RowWrites
	read      []Cell // for which the last run should have waited
	latch     *latch.Latch
	latchWait time.Duration

	onAttempt func(context.Context, Attempt)
	done      *Attempt // the run that has ended, if Update has not reported it yet
}

// report takes what a run did that has ended. Update reports it when it knows what follows.
func (a *attempt) report(ctx context.Context, r *Attempt) {
	r.LatchWait, a.latchWait = a.latchWait, 0
	if a.done = r; !a.inUpdate {
		a.ended(ctx, r.Err, false)
	}
}

// ended reports the run to OnAttempt.
func (a *attempt) ended(ctx context.Context, err error, retry bool) {
	if r := a.done; r != nil {
		a.done = nil
		r.Err, r.Retry = err, retry
		a.onAttempt(ctx, *r)
	}
}

// cells returns the cells that the next run queues for.
func (a *attempt) cells(c *Client) []Cell {
	all := append(c.latches.CellsOf(a.rows, nil), a.read...)
	slices.SortFunc(all, func(a, b Cell) int {
		return cmp.Or(strings.Compare(a.Table, b.Table), strings.Compare(a.Row, b.Row), strings.Compare(a.Family, b.Family), strings.Compare(a.Qualifier, b.Qualifier))
	})
	return slices.Compact(all)
}

// takeLatchForRetry takes the latch of the cells that the previous attempt wrote, and waits until their pauses
// have passed, before the next one takes its start_ts. granted is false if there is nothing to take, or if it gave
// up waiting (Config.LatchWait).
func takeLatchForRetry(ctx context.Context, c *Client, run *attempt) (granted bool, err error) {
	if run.latch == nil {
		began := time.Now()
		var waited bool
		if run.latch, waited, err = c.latches.Acquire(ctx, run.cells(c)); waited {
			countLatchWait(ctx, c, run, began)
		}
	}
	if err == nil {
		_, err = run.latch.Pause(ctx)
	}
	return run.latch != nil, err
}

// releaseLatch releases the latch that an attempt kept for the next one.
func (a *attempt) releaseLatch() {
	a.latch.Release()
	a.latch = nil
}

// countLatchWait counts and measures a wait for a latch.
func countLatchWait(ctx context.Context, c *Client, a *attempt, began time.Time) {
	a.latchWait += time.Since(began)
	c.resolver.Counters.LatchWaits.Add(1)
	c.metrics.LatchWaited(ctx, began)
}
