package txn

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A transaction of Update that begins with a cell that other transactions write, too, waits for its turn before it
// reads the cell, and takes its start timestamp after that. Otherwise the commits before its turn would be
// above its start, and the function would have to run again. The function notices nothing: the
// transaction has read nothing yet, and nobody knows its start timestamp.

// A turn says whether a transaction may still take a new start timestamp.
type turn struct {
	pinned atomic.Bool   // it may not
	mu     sync.Mutex    // of what follows
	first  chan struct{} // closed when the first read has had its turn; nil: none waits for it
	cells  []Cell        // for which it waited
}

// lock locks the turn when no first read is under way.
func (t *turn) lock(ctx context.Context) error {
	for {
		t.mu.Lock()
		first := t.first
		if first == nil {
			return nil
		}
		t.mu.Unlock()
		select {
		case <-first:
		case <-ctx.Done():
			return store.Ended(ctx, "txn: waiting for the transaction's first read", nil)
		}
	}
}

// pin keeps the start timestamp from now on. It waits for a first read that is under way.
func (t *Txn) pin(ctx context.Context) error {
	if t == nil || t.turn.pinned.Load() {
		return nil
	}
	if err := t.turn.lock(ctx); err != nil {
		return err
	}
	defer t.turn.mu.Unlock()
	t.turn.pinned.Store(true)
	return nil
}

// mayQueue reports whether a read may have to wait for its turn. Otherwise it keeps the start
// timestamp from now on.
func (t *Txn) mayQueue(ctx context.Context) bool {
	if t == nil {
		return false
	}
	if t.attempt.inUpdate && t.client.latches.Any() {
		return true
	}
	_ = t.pin(ctx) // if it fails, so does the read: ctx has ended
	return false
}

// maxStartsAgain is how often a first read takes a new start timestamp because of a commit that
// it waited for. After that, the commit finds the conflict.
const maxStartsAgain = 100

// readInTurn is the first read of a transaction, of some cells. writes says that the transaction will
// write them.
func (t *Txn) readInTurn(ctx context.Context, cells []Cell, writes bool, read func() error) error {
	if err := t.turn.lock(ctx); err != nil {
		return err
	}
	if t.turn.pinned.Load() {
		t.turn.mu.Unlock()
		return t.readLater(cells, writes, read)
	}
	a, c := t.attempt, t.client
	cells = slices.DeleteFunc(cells, func(cell Cell) bool { return !c.latches.Expects(cell, writes) })
	if len(cells) == 0 {
		t.turn.pinned.Store(true)
		t.turn.mu.Unlock()
		return read()
	}
	t.turn.cells, t.turn.first = cells, make(chan struct{})
	t.turn.mu.Unlock()
	defer func() {
		t.turn.mu.Lock()
		defer t.turn.mu.Unlock()
		t.turn.pinned.Store(true)
		close(t.turn.first)
		t.turn.first = nil
	}()
	if a.latch == nil {
		if err := t.queue(ctx, cells); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		paused, err := a.latch.Pause(ctx)
		if err != nil {
			return err
		}
		if paused || slices.ContainsFunc(cells, func(cell Cell) bool { return c.recent.Since(cell, t.startTS) }) {
			if err := t.startAgain(ctx); err != nil {
				return err
			}
			a.latch.Renew()
		}
		err = read()
		if err != nil || n == maxStartsAgain || !slices.ContainsFunc(cells, func(cell Cell) bool { return c.recent.Since(cell, t.startTS) }) {
			return err
		}
		for _, cell := range cells {
			if c.recent.Since(cell, t.startTS) {
				c.latches.Lost(cell, retryBackoff(c)) // all of this client's commits there came before its turn
			}
		}
	}
}

// readLater is another read of a transaction. If the commit of its cells would certainly conflict, it
// returns the conflict at once. The next run waits for its turn at all the cells before it starts.
func (t *Txn) readLater(cells []Cell, writes bool, read func() error) error {
	a, c := t.attempt, t.client
	if a.number > 1 {
		return read() // the transaction may not write the cells
	}
	t.turn.mu.Lock()
	for _, cell := range cells {
		if c.latches.Expects(cell, writes) && !slices.Contains(t.turn.cells, cell) {
			t.turn.cells = append(t.turn.cells, cell)
		}
	}
	mine, held := t.turn.cells, false
	if a.latch == nil {
		a.latch = c.latches.Try(mine)
		held = a.latch != nil || len(mine) == 0
	} else {
		held = a.latch.Extend(mine)
	}
	t.turn.mu.Unlock()
	for range 2 {
		for _, cell := range mine {
			if !held || c.recent.Since(cell, t.startTS) {
				return t.giveUpEarly(cell)
			}
		}
		if read == nil {
			break
		}
		if err := read(); err != nil {
			return err
		}
		read = nil
	}
	return nil
}

// giveUpEarly is the conflict with which the commit of the transaction would fail.
func (t *Txn) giveUpEarly(cell Cell) error {
	t.turn.mu.Lock()
	defer t.turn.mu.Unlock()
	a := t.attempt
	a.releaseLatch()
	a.conflictedEarly, a.read = true, slices.Clone(t.turn.cells)
	t.client.resolver.Counters.Conflicts.Add(1)
	t.client.resolver.Counters.EarlyConflicts.Add(1)
	return &ConflictError{Cell: cell, StartTS: t.startTS, Reason: format.ConflictLock}
}

// queue waits for the client's other transactions that write some cells.
func (t *Txn) queue(ctx context.Context, cells []Cell) (err error) {
	began := time.Now()
	var waited bool
	if t.attempt.latch, waited, err = t.client.latches.Acquire(ctx, cells); waited {
		countLatchWait(ctx, t.client, t.attempt, began)
	}
	return err
}

// startAgain takes a new start timestamp, and forgets what the transaction has read.
func (t *Txn) startAgain(ctx context.Context) error {
	asked := time.Now()
	ts, err := t.client.Timestamp(t.withTrace(ctx))
	if err != nil {
		return err
	}
	hold := t.client.resolver.Holds.Add(ts, true)
	t.client.resolver.Holds.Remove(t.hold)
	t.hold, t.startAge = hold, t.began.Sub(asked)
	t.noteStart(ts)
	t.reads = reads{}
	t.reads.init(&t.client.reads, t.opts.name, !t.opts.noPrefetch)
	return nil
}

// noteWritten notes whether the transaction writes the cells for which its first read waited.
func (t *Txn) noteWritten(rows []*store.RowWrites) {
	for _, cell := range t.turn.cells {
		t.client.latches.Ended(cell, slices.ContainsFunc(rows, func(r *store.RowWrites) bool {
			return slices.ContainsFunc(r.Writes, func(w *store.Write) bool { return w.Cell == cell })
		}))
	}
}

// readCellInTurn is readCell for the first read of a transaction.
func (v *View) readCellInTurn(ctx context.Context, cell Cell, writes bool) (value []byte, present bool, err error) {
	err = v.txn.readInTurn(ctx, []Cell{cell}, writes, func() (err error) {
		value, present, err = v.readCell(ctx, cell)
		return err
	})
	return value, present, err
}

// readColumnsInTurn is readColumns for the first read of a transaction.
func (v *View) readColumnsInTurn(ctx context.Context, key string, sel store.Selection) (row bigtable.Row, err error) {
	cells := make([]Cell, 0, len(sel.Columns))
	for _, c := range sel.Columns {
		cells = append(cells, Cell{Table: v.name, Row: key, Family: c.Family, Qualifier: c.Qualifier})
	}
	err = v.txn.readInTurn(ctx, cells, false, func() (err error) {
		row, err = v.readColumns(ctx, key, sel, nil)
		return err
	})
	return row, err
}
