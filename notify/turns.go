package notify

import (
	"slices"
	"sync"

	"github.com/percolator-bigtable/percolator/txn"
)

// A sharer is an observer whose runs for several cells write one cell, which they share. At the same
// time they would conflict. So a worker checks one of these cells after the other, and each run takes its start
// timestamp after the commit of the one before.
type sharer interface {
	// shared returns the cell that the run for a cell writes; ok is false if there is none.
	shared(cell txn.Cell) (shared txn.Cell, ok bool)
}

// turns say which cells of a lane wait for a check that shares a cell with theirs. They
// wait here, and not in a slot, so a cell that many runs share holds up no others.
type turns struct {
	mu    sync.Mutex
	turns map[txn.Cell]*turn // by the shared cell
}

type turn struct {
	cell    txn.Cell   // it is its turn
	waiting []txn.Cell // in the order of their arrival
}

// take reports whether it is a cell's turn. Otherwise the cell waits, and release returns it later.
func (t *turns) take(shared, cell txn.Cell) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.turns[shared]
	if now == nil {
		t.turns[shared] = &turn{cell: cell}
		return true
	}
	if now.cell == cell {
		return true
	}
	if !slices.Contains(now.waiting, cell) {
		now.waiting = append(now.waiting, cell)
	}
	return false
}

// release ends a turn, and returns the cell whose turn is next. If ok is false, none waits.
func (t *turns) release(shared txn.Cell) (next txn.Cell, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.turns[shared]
	if len(now.waiting) == 0 {
		delete(t.turns, shared)
		return txn.Cell{}, false
	}
	now.cell, now.waiting = now.waiting[0], now.waiting[1:]
	return now.cell, true
}
