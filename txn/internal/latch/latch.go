package latch

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// If two transactions write one cell and overlap, from start_ts to commit_ts, only the
// first committer wins. Transactions of one client need no requests to find that out: a
// transaction queues for the cells that it will write. After a conflict, it queues before
// its next run, so that its new start_ts is above the commit of the transaction in front.
//
// Each cell has a queue of its own, so the rows that only one transaction writes hold up nobody. The
// client remembers for a minute which cells were contended. Transactions of Update queue for them when
// they read them, and large transactions queue for no others.

const (
	// contendedFor is how long a cell is contended after a conflict or a wait.
	contendedFor = time.Minute
	// maxContended is how many contended cells a client remembers. If there are more, it forgets those
	// that nobody uses.
	maxContended = 4096
	// maxLatched is how many cells a transaction may write to queue for all of them. A larger one
	// queues for those that are contended.
	maxLatched = 64
	// maxFree is how many queues are kept for reuse.
	maxFree = 64
	// maxOvertaken is how often other transactions may overtake a waiting one at its cells.
	maxOvertaken = 8
	// maxLatchQueue is how many transactions may wait for one cell. The next one continues
	// without latches.
	maxLatchQueue = 1024
	// sureAfter is how many transactions in a row must have written a cell that they had read,
	// before the next one queues when it reads the cell.
	sureAfter = 2
	// shorterAfterCommit divides the bound of a cell's pauses at a commit of this client.
	shorterAfterCommit = 3
)

// Latches are the queues of one client. A transaction enters
// the queues of all its cells at once. It gets all of them at once, when all are free, so no
// transaction holds one while it waits for another. Transactions behind it may
// overtake it meanwhile, but only maxOvertaken times.
type Latches struct {
	wait time.Duration // how long a transaction may hold up another one; negative: no latches

	some  atomic.Bool // a cell has been contended
	mu    sync.Mutex
	cells map[format.Cell]*queue // those that are in use or contended
	free  []*queue
}

type queue struct {
	cell      format.Cell
	contended time.Time // the last conflict or wait; zero: there was none
	wrote     int       // how many transactions in a row have written the cell, of those that read it
	holder    *Latch    // nil: free
	since     time.Time // when holder got the cell
	waiting   []*Latch  // in the order of their arrival
	// Other clients may want the cell, too. The holder begins after notBefore. The last pause was at
	// most bound.
	bound     time.Duration
	notBefore time.Time
}

func (q *queue) idle() bool { return q.holder == nil && len(q.waiting) == 0 }

// A Latch is what one transaction holds or waits for. A nil Latch holds nothing.
type Latch struct {
	latches *Latches
	queues  []*queue
	inline  [2]*queue     // memory for queues, if they are few
	granted chan struct{} // closed when the Latch gets its cells; nil: it did not wait
	// overtaken counts how often a Latch behind this one got a cell first.
	overtaken int
}

// New returns the queues of a client. wait is how long a transaction waits at most for one
// other transaction; if it is negative, there are no latches.
func New(wait time.Duration) *Latches { return &Latches{wait: wait, cells: map[format.Cell]*queue{}} }

// Conflicted says that a cell is contended.
func (ls *Latches) Conflicted(cell format.Cell) {
	if ls.wait < 0 {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.markContended(ls.queueOf(cell))
}

// markContended notes a conflict or a wait. ls.mu is held.
func (ls *Latches) markContended(q *queue) {
	q.contended = time.Now()
	ls.some.Store(true)
}

// queueOf returns the queue of a cell. ls.mu is held.
func (ls *Latches) queueOf(cell format.Cell) *queue {
	if q := ls.cells[cell]; q != nil {
		return q
	}
	for long := contendedFor; len(ls.cells) >= maxContended && long >= 0; long -= contendedFor {
		for c, q := range ls.cells {
			if q.idle() && time.Since(q.contended) >= long {
				delete(ls.cells, c)
			}
		}
	}
	q := &queue{}
	if n := len(ls.free); n > 0 {
		q, ls.free = ls.free[n-1], ls.free[:n-1]
	}
	*q = queue{cell: cell, wrote: sureAfter}
	ls.cells[cell] = q
	return q
}

// forget removes the queues that nobody uses, of cells that are not contended. ls.mu is held.
func (ls *Latches) forget(queues []*queue) {
	for _, q := range queues {
		if q.idle() && q.contended.IsZero() && ls.cells[q.cell] == q {
			delete(ls.cells, q.cell)
			if len(ls.free) < maxFree {
				ls.free = append(ls.free, q)
			}
		}
	}
}

// isContended reports whether a cell has conflicted lately. ls.mu is held.
func (ls *Latches) isContended(cell format.Cell, now time.Time) bool {
	q := ls.cells[cell]
	return q != nil && now.Sub(q.contended) < contendedFor
}

// CellsOf appends the cells that a commit of rows queues for.
func (ls *Latches) CellsOf(rows []*store.RowWrites, cells []format.Cell) []format.Cell {
	n := 0
	for _, r := range rows {
		n += len(r.Writes)
	}
	switch {
	case ls.wait < 0:
		return nil
	case n > maxLatched:
		return append(cells, ls.Contended(rows)...)
	}
	cells = slices.Grow(cells, n)
	for _, r := range rows {
		for _, w := range r.Writes {
			cells = append(cells, w.Cell)
		}
	}
	return cells
}

// Any reports whether a cell has been contended.
func (ls *Latches) Any() bool { return ls.some.Load() }

// Contended returns the cells of rows that have conflicted lately.
func (ls *Latches) Contended(rows []*store.RowWrites) (cells []format.Cell) {
	if !ls.some.Load() {
		return nil
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := time.Now()
	for _, r := range rows {
		for _, w := range r.Writes {
			if ls.isContended(w.Cell, now) {
				cells = append(cells, w.Cell)
			}
		}
	}
	return cells
}

// Expects reports whether a transaction that reads a cell should queue for it: it has conflicted
// lately, and those that read it have written it.
func (ls *Latches) Expects(cell format.Cell, certain bool) bool {
	if !ls.some.Load() {
		return false
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.isContended(cell, time.Now()) && (certain || ls.cells[cell].wrote >= sureAfter)
}

// Ended notes whether a transaction has written a cell that it queued for when it read it.
func (ls *Latches) Ended(cell format.Cell, wrote bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if q := ls.cells[cell]; q != nil && wrote {
		q.wrote++
	} else if q != nil {
		q.wrote = 0
	}
}

// Acquire waits until it holds all of cells. A nil Latch without an error means that the
// caller continues without: another transaction had one of the cells for too long, or
// a queue is full, or cells is empty. The error is that of the ended context.
func (ls *Latches) Acquire(ctx context.Context, cells []format.Cell) (l *Latch, waited bool, err error) {
	if len(cells) == 0 {
		return nil, false, nil
	}
	l = &Latch{latches: ls}
	if full := ls.takeOrEnqueue(l, cells); full {
		return nil, false, nil
	}
	if l.granted == nil {
		return l, false, nil
	}
	timer := time.NewTimer(ls.wait)
	defer timer.Stop()
	for {
		select {
		case <-l.granted:
			return l, true, nil
		case <-ctx.Done():
			ls.stopWaiting(l)
			return nil, true, store.Ended(ctx, "percolator: waiting for another transaction of this client that writes the same cells", nil)
		case <-timer.C:
			more := ls.patience(l)
			if more <= 0 {
				ls.stopWaiting(l)
				return nil, true, nil
			}
			timer.Reset(more)
		}
	}
}

// Try returns a Latch that holds all of cells, or nil if it would have to wait.
func (ls *Latches) Try(cells []format.Cell) *Latch {
	l := &Latch{latches: ls}
	if len(cells) == 0 || !l.Extend(cells) {
		return nil
	}
	return l
}

// patience returns how much longer l waits before it looks again. It is 0 if a transaction has
// had one of l's cells for as long as another one waits at most. As long as the queue moves, l
// keeps its place, however long the queue is.
func (ls *Latches) patience(l *Latch) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	more := ls.wait
	for _, q := range l.queues {
		if q.holder != nil {
			more = min(more, ls.wait-time.Since(q.since))
		}
	}
	return more
}

// takeOrEnqueue grants l its cells if they are available. Otherwise it puts l into their
// queues. full reports that a queue had no room.
func (ls *Latches) takeOrEnqueue(l *Latch, cells []format.Cell) (full bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.queues = l.inline[:0]; len(cells) > len(l.inline) {
		l.queues = make([]*queue, 0, len(cells))
	}
	for _, c := range cells {
		l.queues = append(l.queues, ls.queueOf(c))
	}
	if ls.available(l) {
		ls.grant(l)
		return false
	}
	for _, q := range l.queues {
		if len(q.waiting) >= maxLatchQueue {
			ls.forget(l.queues)
			return true
		}
	}
	l.granted = make(chan struct{})
	for _, q := range l.queues {
		if q.holder != nil {
			ls.markContended(q)
		}
		q.waiting = append(q.waiting, l)
	}
	return false
}

// available reports whether l may have its cells now: all are free, and no Latch in front
// of l has been overtaken too often. ls.mu is held.
func (ls *Latches) available(l *Latch) bool {
	for _, q := range l.queues {
		if q.holder != nil {
			return false
		}
		for _, other := range q.waiting {
			if other == l {
				break
			}
			if other.overtaken >= maxOvertaken {
				return false
			}
		}
	}
	return true
}

// grant gives l its cells and removes it from their queues. ls.mu is held.
func (ls *Latches) grant(l *Latch) {
	now := time.Now()
	for _, q := range l.queues {
		q.holder, q.since = l, now
		for _, other := range q.waiting {
			if other == l {
				break
			}
			other.overtaken++
		}
	}
	if l.granted != nil {
		ls.dequeue(l)
		close(l.granted)
	}
}

// dequeue removes l from the queues. ls.mu is held.
func (ls *Latches) dequeue(l *Latch) {
	for _, q := range l.queues {
		if i := slices.Index(q.waiting, l); i >= 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
		}
		if len(q.waiting) == 0 {
			q.waiting = nil
		}
	}
}

// stopWaiting removes l from the queues. It also frees those of its cells that their holders
// have had for as long as a transaction may wait. So a function that runs long holds up one
// transaction, and not the next ones.
func (ls *Latches) stopWaiting(l *Latch) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.dequeue(l)
	for _, q := range l.queues {
		// l may have got the cell just now.
		if q.holder == l || time.Since(q.since) >= ls.wait {
			q.holder = nil
		}
	}
	ls.grantFree(l.queues)
	ls.forget(l.queues)
}

// grantFree grants cells that are free to the first waiting Latch that may have them.
// ls.mu is held.
func (ls *Latches) grantFree(queues []*queue) {
	for _, q := range queues {
		for i := 0; q.holder == nil && i < len(q.waiting); i++ {
			if l := q.waiting[i]; ls.available(l) {
				ls.grant(l)
			}
		}
	}
}

// Release frees the cells that l still holds. It may be called more than once.
func (l *Latch) Release() {
	if l == nil {
		return
	}
	ls := l.latches
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, q := range l.queues {
		if q.holder == l {
			q.holder = nil
		}
	}
	ls.grantFree(l.queues)
	ls.forget(l.queues)
}

// Extend adds to l those of cells that it lacks, if they are free. Otherwise it changes nothing.
func (l *Latch) Extend(cells []format.Cell) bool {
	if l == nil {
		return len(cells) == 0
	}
	ls := l.latches
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var more []*queue
	for _, c := range cells {
		q := ls.queueOf(c)
		if slices.Contains(l.queues, q) {
			continue
		}
		if more = append(more, q); !q.idle() {
			ls.forget(more)
			return false
		}
	}
	now := time.Now()
	for _, q := range more {
		q.holder, q.since = l, now
	}
	l.queues = append(l.queues, more...)
	return true
}

// Renew lets those that wait for l wait on: what l waits for has moved.
func (l *Latch) Renew() {
	if l == nil {
		return
	}
	l.latches.mu.Lock()
	defer l.latches.mu.Unlock()
	for _, q := range l.queues {
		if q.holder == l {
			q.since = time.Now()
		}
	}
}

// Lost says that another client's transaction has taken a cell before one of this client did. The
// client's next transaction at the cell waits for a jittered pause before it begins. Its bound doubles each time. It
// belongs to the cell, because the next transactions of the client would all meet the same clients there.
func (ls *Latches) Lost(cell format.Cell, pauses store.Backoff) {
	if ls.wait < 0 {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.queueOf(cell)
	ls.markContended(q)
	q.bound = min(max(2*q.bound, pauses.Min), pauses.Max)
	q.notBefore = time.Now().Add(rand.N(q.bound))
}

// Won says that a transaction of this client has committed. The next one at its cells begins at once, and
// the pauses after that are shorter.
func (ls *Latches) Won(rows []*store.RowWrites) {
	if !ls.some.Load() {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, r := range rows {
		for _, w := range r.Writes {
			if q := ls.cells[w.Cell]; q != nil {
				q.bound, q.notBefore = q.bound/shorterAfterCommit, time.Time{}
			}
		}
	}
}

// Pause waits until the pauses of l's cells have passed, and reports whether it had to.
func (l *Latch) Pause(ctx context.Context) (paused bool, err error) {
	if l == nil {
		return false, nil
	}
	var until time.Time
	l.latches.mu.Lock()
	for _, q := range l.queues {
		if q.notBefore.After(until) {
			until = q.notBefore
		}
	}
	l.latches.mu.Unlock()
	left := time.Until(until)
	if left <= 0 {
		return false, nil
	}
	if store.Sleep(ctx, left) != nil {
		return true, store.Ended(ctx, "percolator: waiting because other clients write the same cells", nil)
	}
	l.Renew()
	return true, nil
}
