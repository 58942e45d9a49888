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

// A lane holds the cells of one column that wait for their observers, each
// once, so that a slow column does not hold others up.
type lane struct {
	worker   *Worker
	handlers []*handler
	width    int // how many cells are looked at at a time
	// found are cells that a finder has found, and few of them: it is old news
	// soon where other workers find them too, so that the finder waits, for a
	// moment. queue is for hints, and for what was found for slow observers.
	found, queue chan task
	slow         atomic.Bool
	// look is Worker.process.
	look func(ctx, runs context.Context, l *lane, t task) (again time.Duration)

	mu    sync.Mutex
	cells map[string]cellState // by row
	// settled are cells that a look has found to need nothing of this worker,
	// although their notifications stay, for observers elsewhere for example. A
	// finder would have them looked at in each of its sweeps.
	settled map[string]settledCell
}

// A settledCell needs no look before until, unless it is notified above upTo.
type settledCell struct {
	upTo  tso.Timestamp
	until time.Time
}

// maxSettled bounds what a lane remembers of cells; forgetting costs looks.
const maxSettled = 100_000

func (l *lane) settle(row string, upTo tso.Timestamp, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.settled) >= maxSettled {
		clear(l.settled)
	}
	l.settled[row] = settledCell{upTo, time.Now().Add(d)}
}

func (l *lane) isSettled(n changes.Notification) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.settled[n.Cell.Row]
	if !ok {
		return false
	}
	newer := slices.ContainsFunc(n.Triggers, func(t format.Trigger) bool { return t.TS > s.upTo })
	if newer || time.Now().After(s.until) {
		delete(l.settled, n.Cell.Row)
		return false
	}
	return true
}

// A task is a cell to look at.
type task struct {
	cell txn.Cell
	// met is called when another worker is at the cell; nil in hints.
	met func()
}

type cellState int8

const (
	queued cellState = iota + 1
	running
	runningAgain // somebody asked for it meanwhile
)

// patience is how long a finder waits for room in a lane before it takes its
// observers for slow: longer than fast ones take, and short enough for the
// lanes of other columns, which wait along.
const patience = 50 * time.Millisecond

func newLane(w *Worker, hs []*handler) *lane {
	width := 1
	for _, h := range hs {
		width = max(width, min(h.concurrency, w.cfg.Concurrency))
	}
	return &lane{worker: w, handlers: hs, width: width, look: w.process, queue: make(chan task, w.cfg.Queue), found: make(chan task, width), cells: map[string]cellState{}, settled: map[string]settledCell{}}
}

// offer queues a task unless its cell is queued already. Where there is no
// room it waits, as finders do, or refuses, as is done with hints. While the cell
// is being looked at, it has it looked at again.
func (l *lane) offer(ctx context.Context, t task, wait bool) (accepted bool) {
	if accepted, full := l.enter(t, wait); !full {
		return accepted
	}
	if l.soon(ctx, t) {
		return true
	}
	select {
	case l.queue <- t:
		return true
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.cells, t.cell.Row)
	return false
}

// soon queues a task for an observer that is about to be free.
func (l *lane) soon(ctx context.Context, t task) bool {
	if l.slow.Load() {
		return false
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case l.found <- t:
		return true
	case <-wait.C:
		l.slow.Store(true)
	case <-ctx.Done():
	}
	return false
}

// enter queues a task if there is room. full: the caller has to queue it, and
// others count on that.
func (l *lane) enter(t task, wait bool) (accepted, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.cells[t.cell.Row] {
	case queued, runningAgain:
		return true, false
	case running:
		l.cells[t.cell.Row] = runningAgain
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
	l.cells[t.cell.Row] = queued
	return true, full
}

// busy reports whether the cell is queued or being looked at here.
func (l *lane) busy(row string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cells[row] != 0
}

// work processes tasks until ctx ends. runs is the context of what is running,
// which ends later.
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
		l.set(t.cell.Row, running)
		after := l.look(ctx, runs, l, t)
		if after > 0 {
			l.worker.later.after(after, func() { l.offer(ctx, task{cell: t.cell}, false) })
		}
		if l.leave(t.cell.Row) || ctx.Err() != nil {
			return
		}
		t.met = nil
	}
}

func (l *lane) set(row string, s cellState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cells[row] = s
}

// leave reports that nobody asked for the cell while it was running.
func (l *lane) leave(row string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cells[row] == runningAgain {
		return false
	}
	delete(l.cells, row)
	return true
}

// timers are cells to be looked at later. Their number is bounded: what is
// forgotten is found by the finder.
type timers struct {
	mu     sync.Mutex
	opened bool
	all    map[*time.Timer]struct{}
}

const maxTimers = 10_000

func (t *timers) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened, t.all = true, map[*time.Timer]struct{}{}
}

func (t *timers) after(d time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.opened || len(t.all) >= maxTimers {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		t.mu.Lock()
		delete(t.all, timer)
		opened := t.opened
		t.mu.Unlock()
		if opened {
			f()
		}
	})
	t.all[timer] = struct{}{}
}

func (t *timers) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.opened = false
	for timer := range t.all {
		timer.Stop()
	}
}
