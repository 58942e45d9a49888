package notify

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A lane holds the cells of one column, or of a pattern, that wait for their observers, each cell
// once. Each column has its own lane, so that slow observers do not delay other columns.
type lane struct {
	handlers []*handler
	width    int // cells that it checks at the same time
	// found holds cells that a finder found. It is short, and the finder waits for room,
	// because another worker may soon have handled what waits here. queue holds cells
	// of hints, and cells that a finder found for slow observers.
	found, queue chan task
	slow         atomic.Bool // found had no room for roomTimeout
	// check checks a cell, and returns after which time to check it again; 0: when it is
	// found or hinted.
	check func(ctx, runs context.Context, l *lane, t task) (again time.Duration)
	later *timers
	turns turns

	mu    sync.Mutex
	cells map[txn.Cell]cellState
	// skips are cells in which this worker has nothing to do, although their
	// notifications stay, for example for observers of other workers. Without skips,
	// every sweep would check them again.
	skips map[txn.Cell]skip
}

// A skip says that a cell needs no check before until, unless it has a notification
// above upTo.
type skip struct {
	upTo  tso.Timestamp
	until time.Time
}

// maxSkips bounds a lane's skips, and so its memory. Beyond it the lane forgets them all,
// which costs one check each.
const maxSkips = 100_000

// roomTimeout is how long a finder waits for room in a lane before the lane counts its
// observers as slow. Fast observers make room sooner. A finder that waits longer would
// delay the lanes of other columns.
const roomTimeout = 50 * time.Millisecond

// A task is a cell to check.
type task struct {
	cell txn.Cell
	// contended is called if another worker turns out to work on the cell; nil for hints.
	contended func()
}

type cellState int8

const (
	queued cellState = iota + 1
	running
	runningAgain // offered again during the check
)

// newLane returns a lane for a column's handlers. It has room for as many hints as queue,
// and checks at most concurrency cells at the same time.
func newLane(hs []*handler, concurrency, queue int, later *timers) *lane {
	width := 1
	for _, h := range hs {
		width = max(width, min(h.concurrency, concurrency))
	}
	return &lane{handlers: hs, width: width, later: later, queue: make(chan task, queue), found: make(chan task, width), cells: map[txn.Cell]cellState{}, skips: map[txn.Cell]skip{}, turns: turns{turns: map[txn.Cell]*turn{}}}
}

// shared returns the cell that the runs for a cell write, if those for other cells write it, too.
func (l *lane) shared(cell txn.Cell) (shared txn.Cell, ok bool) {
	for _, h := range l.handlers {
		if s, is := h.observer.(sharer); is && !ok {
			shared, ok = s.shared(cell)
		}
	}
	return shared, ok
}

// endTurn ends the turn of a check, and offers the next cell that waits for it. If there is no
// room for a cell, the finder finds it again.
func (l *lane) endTurn(ctx context.Context, shared txn.Cell) {
	for {
		next, ok := l.turns.release(shared)
		if !ok || l.offer(ctx, task{cell: next}, false) {
			return
		}
	}
}

// skip has the lane refuse a cell for d, unless it has a notification above upTo.
func (l *lane) skip(cell txn.Cell, upTo tso.Timestamp, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.skips) >= maxSkips {
		clear(l.skips)
	}
	l.skips[cell] = skip{upTo, time.Now().Add(d)}
}

// skipped reports whether a cell needs no check yet.
func (l *lane) skipped(n changes.Notification) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.skips[n.Cell]
	newer := slices.ContainsFunc(n.Triggers, func(t format.NotifyCell) bool { return t.TS > s.upTo })
	if newer || time.Now().After(s.until) {
		delete(l.skips, n.Cell)
		return false
	}
	return true
}

// allWaiting reports whether every observer of the lane has failed on the newest change
// and the pause of at least one has not ended, as far as the notify column shows. now is
// the oracle's time; 0: unknown. A cell with failures and no notification is not waiting,
// nor is one that is a dead letter for every observer: a check has to remove what is left.
func (l *lane) allWaiting(n changes.Notification, now tso.Timestamp) (waiting bool) {
	if now == 0 || len(n.Triggers) == 0 {
		return false
	}
	newest := n.Triggers[len(n.Triggers)-1].TS
	for _, h := range l.handlers {
		f := n.Failures[h.id]
		known := f.LastTS
		if h.weak {
			known = f.ChangeTS // a newer one may arrive late, below the start of the run
		}
		if newest > known || f.NotBefore <= now {
			return false
		}
		waiting = waiting || f.NotBefore != never
	}
	return waiting
}

// offer queues a task, unless its cell is queued already. If the cell is being checked,
// the lane checks it again. If there is no room, offer waits if wait is true, as for
// finders, and otherwise refuses the task, as for hints.
func (l *lane) offer(ctx context.Context, t task, wait bool) (accepted bool) {
	if accepted, full := l.enter(t, wait); !full {
		return accepted
	}
	if l.awaitRoom(ctx, t) {
		return true
	}
	select {
	case l.queue <- t:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.cells, t.cell)
	return false
}

// awaitRoom waits until found has room, for roomTimeout at most.
func (l *lane) awaitRoom(ctx context.Context, t task) bool {
	if l.slow.Load() {
		return false
	}
	timeout := time.NewTimer(roomTimeout)
	defer timeout.Stop()
	select {
	case l.found <- t:
		return true
	case <-timeout.C:
		l.slow.Store(true)
	case <-ctx.Done():
	}
	return false
}

// enter queues a task if there is room. If full is true, the cell counts as queued, and
// the caller must queue the task.
func (l *lane) enter(t task, wait bool) (accepted, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.cells[t.cell] {
	case queued, runningAgain:
		return true, false
	case running:
		l.cells[t.cell] = runningAgain
		return true, false
	}
	queue := l.queue
	if wait {
		queue = l.found
	}
	select {
	case queue <- t:
		if wait {
			l.slow.Store(false)
		}
	default:
		if !wait {
			return false, false
		}
		full = true
	}
	l.cells[t.cell] = queued
	return true, full
}

// busy reports whether this lane has queued the cell or is checking it.
func (l *lane) busy(cell txn.Cell) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cells[cell] != 0
}

// work checks cells until ctx ends. runs is the context of observers' runs, which ends
// later.
func (l *lane) work(ctx, runs context.Context) {
	for ctx.Err() == nil {
		select {
		case t := <-l.found:
			l.process(ctx, runs, t)
		case t := <-l.queue:
			l.process(ctx, runs, t)
		case <-ctx.Done():
		}
	}
}

func (l *lane) process(ctx, runs context.Context, t task) {
	for {
		l.set(t.cell, running)
		if again := l.check(ctx, runs, l, t); again > 0 {
			l.later.after(again, func() { l.offer(ctx, task{cell: t.cell}, false) })
		}
		if l.leave(t.cell) || ctx.Err() != nil {
			return
		}
		t.contended = nil
	}
}

func (l *lane) set(cell txn.Cell, s cellState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cells[cell] = s
}

// leave reports whether the cell was not offered again during its check.
func (l *lane) leave(cell txn.Cell) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cells[cell] == runningAgain {
		return false
	}
	delete(l.cells, cell)
	return true
}
