package txn

import (
	"context"
	"errors"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// noteConflict remembers what a prewrite conflicted with. From then on, this client's transactions that
// write the cell take turns, and they leave other clients time.
func (c *Client) noteConflict(err error) {
	var conflict *ConflictError
	if errors.As(err, &conflict) && (conflict.Reason == format.ConflictWrite || conflict.Reason == format.ConflictLock) {
		c.latches.Lost(conflict.Cell, retryBackoff(c))
		c.recent.Conflicted(err)
	}
}

// noteCommit remembers a commit that a read found above its timestamp.
func (c *Client) noteCommit(conflict *ConflictError) {
	c.latches.Conflicted(conflict.Cell)
	c.recent.Conflicted(conflict)
}

// takeLatch waits for the transactions of this client that are committing writes of the same
// cells. It returns a ConflictError, before anything is sent, if a transaction that the
// client remembers has committed one of the cells since this one's start. releaseLatch gives
// the latch back.
func (c *commit) takeLatch(ctx context.Context) error {
	a := c.txn.attempt
	c.latch, a.latch = a.latch, nil
	a.rows = c.rows
	err := c.knownConflict()
	var few [4]Cell
	if cells := c.client.latches.CellsOf(c.rows, few[:0]); err == nil && !c.latch.Extend(cells) {
		// The latch of the previous attempt covers other cells. Waiting for a latch
		// while holding another one could deadlock.
		c.latch.Release()
		began := time.Now()
		var waited bool
		if c.latch, waited, err = c.client.latches.Acquire(ctx, cells); waited {
			countLatchWait(ctx, c.client, a, began)
		}
		if err == nil && waited {
			err = c.knownConflict()
		}
	}
	var conflict *ConflictError
	if a.conflictedEarly = errors.As(err, &conflict); a.conflictedEarly && a.inUpdate {
		// The next attempt keeps this one's turn.
		a.latch, c.latch = c.latch, nil
	}
	return err
}

// releaseLatch lets the next transaction of this client write the cells: at the end of the
// commit, and before it waits for a lock, which may take long.
func (c *commit) releaseLatch() { c.latch.Release() }

// knownConflict returns a conflict that the client knows without a request, or nil.
func (c *commit) knownConflict() error {
	if e := c.client.recent.Conflict(c.rows, c.startTS); e != nil {
		c.client.resolver.Counters.EarlyConflicts.Add(1)
		c.client.latches.Conflicted(e.Cell)
		return e
	}
	return nil
}
