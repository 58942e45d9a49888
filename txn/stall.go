package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A commit of several rows must not keep locks while one of its rows does not answer: other clients want
// the rows that are well (docs/design/tablets.md). So
//
//   - a commit that finds an ill row waits until it answers, before it locks anything (awaitIll);
//   - it prewrites the rows that have been ill first, and has its primary elsewhere;
//   - if a prewrite stalls beside locks of other rows, it gives them up, as after a conflict. The
//     next attempt has another start_ts, because a late removal of a lock would take a new lock at
//     the same one.

// A stalledError is the conflict of a commit that gave its locks up.
type stalledError struct {
	conflict *ConflictError
	stall    *store.StallError
}

func (e *stalledError) Error() string { return e.conflict.Error() + ": " + e.stall.Error() }

func (e *stalledError) Unwrap() error { return e.conflict }

// gaveUp returns the error of a commit that ended with err. A stall becomes a conflict.
func (c *commit) gaveUp(err error) error {
	var stall *store.StallError
	if !errors.As(err, &stall) {
		return err
	}
	c.stalled = true
	cell := c.primary
	if i := slices.IndexFunc(c.rows, func(r *store.RowWrites) bool { return r.Table == stall.Table && r.Row == stall.Row }); i >= 0 {
		cell = c.rows[i].Writes[0].Cell
	}
	return &stalledError{&ConflictError{Cell: cell, StartTS: c.startTS, Reason: format.ConflictStalled}, stall}
}

// awaitStalled waits after a stall, before the next attempt.
func (c *Client) awaitStalled(ctx context.Context, conflict error) error {
	var e *stalledError
	if !errors.As(conflict, &e) {
		return nil
	}
	return c.await(ctx, e.stall)
}

// awaitLock is how long a commit waits before it looks again whether a lock is gone.
const awaitLock = time.Second

// await waits until a row answers: until ctx ends, and if it has no deadline, as long as a request
// without an answer and those after it may take. If only a lock needs the row, the owner of that lock may
// give up earlier.
func (c *Client) await(ctx context.Context, stall *store.StallError) error {
	limit := c.resolver.Store.Config.RPCTimeout + c.cfg.LockTTL
	if stall.Lock {
		limit = awaitLock/4 + rand.N(awaitLock)
	} else if _, ok := ctx.Deadline(); ok {
		return stall.Table.Await(ctx, stall.Row)
	}
	err := stall.Table.AwaitFor(ctx, limit, stall.Row)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case stall.Lock:
		return nil
	}
	return fmt.Errorf("txn: row %q of table %q has not answered for Config.RPCTimeout and Config.LockTTL (%v): %w", stall.Row, stall.Table.Name, limit, cmp.Or(stall.Err, errNoAnswer))
}

func isIll(row *store.RowWrites) bool { return row.Table.IsIll(row.Row) }

// awaitIll waits until all rows answer. If the primary is in an ill row, it chooses another one: locks
// whose primary does not answer cannot be resolved. It has sent nothing yet, and has no latch.
func (c *commit) awaitIll(ctx context.Context) error {
	if !slices.ContainsFunc(c.rows, isIll) {
		return nil
	}
	c.ill = true
	c.txn.attempt.releaseLatch() // that of the previous attempt
	if i := slices.IndexFunc(c.rows, func(r *store.RowWrites) bool { return !isIll(r) }); i > 0 {
		c.rows = slices.Clone(c.rows)
		c.rows[0], c.rows[i] = c.rows[i], c.rows[0]
		c.primary = c.rows[0].Writes[0].Cell
	}
	for _, row := range c.rows {
		if err := c.client.await(ctx, &store.StallError{Table: row.Table, Row: row.Row}); err != nil {
			return err
		}
	}
	return nil
}

// prewriteIllFirst prewrites the ill rows, and then the others. As long as a commit prewrites a single
// row, it holds nothing that others need, and so need not give up.
func prewriteIllFirst(ctx context.Context, c *commit) error {
	rows := c.rows
	if c.ill {
		var ill, others []*store.RowWrites
		for _, row := range rows {
			if isIll(row) {
				ill = append(ill, row)
			} else {
				others = append(others, row)
			}
		}
		c.holds.Store(len(ill) > 1)
		if len(ill) > 0 {
			if err := prewriteRows(ctx, c, ill); err != nil || len(others) == 0 {
				return err
			}
		}
		rows = others
	}
	c.holds.Store(len(c.rows) > 1)
	return prewriteRows(ctx, c, rows)
}

// patience returns after how long without an answer the prewrite of a row counts as stalled.
func (c *commit) patience(row *store.RowWrites) time.Duration {
	return row.Table.StallAfter(row.Row)
}

// await waits for a row that has stalled, if the commit holds no lock of another row. Else it returns
// stall. Meanwhile other commits of this client have its latch, and its place among them.
func (c *commit) await(ctx context.Context, stall *store.StallError) error {
	if c.holds.Load() {
		return stall
	}
	c.releaseLatch()
	c.leave()
	if err := c.client.await(ctx, stall); err != nil {
		return err
	}
	return c.enter(ctx)
}

// lockCells sends a prewrite. The watch ends the request if the row stalls, but not that of a part.
func (c *commit) lockCells(ctx context.Context, row *store.RowWrites, conflict bigtable.Filter) (matched bool, err error) {
	if row.IsPart {
		return row.Table.CheckAndMutateWithin(ctx, c.patience(row), row.Row, conflict, nil, lockMutation(c, row))
	}
	return row.Table.CheckAndMutate(ctx, row.Row, conflict, nil, lockMutation(c, row))
}

// fail ends the waits of the other rows.
func (c *commit) fail() {
	c.failed.Store(true)
	c.watch.fail()
}

// A watch looks after the prewrites of a commit. The timer of the heartbeat drives it, so that it costs
// nothing as long as they are quick.
type watch struct {
	mu      sync.Mutex
	cancel  context.CancelFunc // ends the prewrites; nil: none is under way that it may end
	failed  bool
	waits   map[int]context.CancelFunc // for locks
	nextID  int
	stall   *store.StallError
	outside bool // the commit has no place among the client's commits
}

func (w *watch) begin(cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel = cancel
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel = nil
}

// result returns the error of prewrites that ended with err. If the watch has ended them, the error is a
// stall, unless the caller has given up.
func (w *watch) result(caller context.Context, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.stall != nil && caller.Err() == nil {
		return w.stall
	}
	return err
}

// onFailure calls cancel when a row fails, until the caller calls what it returns.
func (w *watch) onFailure(cancel context.CancelFunc) (done func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed {
		cancel()
	}
	if w.waits == nil {
		w.waits = map[int]context.CancelFunc{}
	}
	id := w.nextID
	w.nextID++
	w.waits[id] = cancel
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waits, id)
	}
}

func (w *watch) fail() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failed = true
	for _, cancel := range w.waits {
		cancel()
	}
}

// look notes the rows whose prewrite has stalled. If the commit may hold others, look ends its prewrites.
// Otherwise it only lets other commits of the client have what this one has.
func (c *commit) look() {
	for _, row := range c.rows {
		waits := row.Waits()
		if waits == 0 || waits < c.patience(row) {
			continue
		}
		row.Table.NoteStall(row.Row)
		w := &c.watch
		w.mu.Lock()
		if w.cancel != nil && c.holds.Load() {
			if w.stall == nil {
				w.stall = &store.StallError{Table: row.Table, Row: row.Row, After: waits, Err: errNoAnswer}
			}
			w.cancel()
		}
		w.mu.Unlock()
		if !c.holds.Load() {
			c.releaseLatch()
			c.leave()
		}
	}
}

var errNoAnswer = errors.New("no answer")

// enter waits for a place among the client's commits, and leave gives it back.
func (c *commit) enter(ctx context.Context) error {
	if err := c.client.admission.Admit(ctx, "commits"); err != nil {
		return err
	}
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	c.watch.outside = false
	return nil
}

func (c *commit) leave() {
	c.watch.mu.Lock()
	defer c.watch.mu.Unlock()
	if !c.watch.outside {
		c.client.admission.Release()
	}
	c.watch.outside = true
}
