package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Background does work that no caller waits for. It commits secondaries, in batches that
// transactions share. It removes what transactions that were rolled back left. It resolves
// locks that reads found. Its memory is bounded: if work does not fit, the caller does it,
// or leaves it to the next client that reaches the locks.
type Background struct {
	store *Store

	mu     sync.Mutex
	queues map[*Table]*bulkQueue
	cells  int // changes of cells that are queued or being sent
	bytes  int // about how much memory they take
	tasks  int // functions of Run that run
	closed bool
	idle   chan struct{} // closed once closed is set, and cells and tasks are 0
	// abandoned: close has given up, and ended all work by cancels.
	abandoned bool
	cancels   map[int]context.CancelFunc
	nextKey   int // in cancels
}

// A bulkQueue holds the unconditional row mutations of one table. Rows that were not tried
// yet and rows that failed wait apart. So a row that keeps failing holds up no other
// transaction's rows.
type bulkQueue struct {
	fresh, failed lane
	// away are rows that are closed (ill.go). Nothing else waits for them.
	away  []RowMutation
	waits bool // a goroutine waits for away
}

// A lane is one of the two.
//
// For fresh rows, one request runs at a time. Rows that arrive meanwhile form the next
// batch, and a row waits only if a request is under way.
//
// For failed rows, up to maxTasks requests run at a time, each with the rows of one
// transaction. The reason is that the Bigtable client retries a failing row within its
// request, and in the end does not say which other rows were applied.
type lane struct {
	pending []RowMutation
	senders int  // goroutines of sendLane
	retries bool // it holds failed rows
}

const (
	// MaxBatchRows is how many rows a background request has at most.
	MaxBatchRows = 1000
	// maxBatchBytes is how much memory the mutations of a request take at most, unless it
	// is a single row. So many bytes have fewer changes than Bigtable allows.
	maxBatchBytes = 4 << 20
	// maxTasks is how many functions of Run, and how many retries for one table, run at a
	// time.
	maxTasks = 16
	// freshTimeout is how long a row that fails in its first request can hold up the next
	// rows.
	freshTimeout = 2 * time.Second
)

func newBackground(s *Store) *Background {
	return &Background{store: s, queues: map[*Table]*bulkQueue{}, idle: make(chan struct{}), cancels: map[int]context.CancelFunc{}}
}

// newWork returns a context for one goroutine. It ends when close gives up. The goroutine
// calls release at the end, without b.mu. b.mu is held.
func (b *Background) newWork() (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(telemetry.Untraced)
	if b.abandoned {
		cancel()
	}
	key := b.nextKey
	b.nextKey++
	b.cancels[key] = cancel
	return ctx, func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.cancels, key)
	}
}

// start runs f in a goroutine. b.mu is held.
func (b *Background) start(f func(context.Context)) {
	ctx, release := b.newWork()
	go func() {
		defer release()
		f(ctx)
	}()
}

// probe runs f in a goroutine for which close does not wait. Its context ends then.
func (b *Background) probe(f func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.start(f)
}

// Add queues mutations and reports whether there was room for all of them.
//
// The background tries them for Config.BackgroundTimeout and then gives them up. If a
// roll-forward was applied very late, it could bring a collected version back (design §5,
// hazard 9), and the next client that reaches the lock rolls it forward as well.
func (b *Background) Add(t *Table, muts []RowMutation) bool {
	deadline := time.Now().Add(b.store.Config.BackgroundTimeout)
	for i := range muts {
		muts[i].deadline = deadline
	}
	cells, bytes := sizeOf(muts)
	b.mu.Lock()
	defer b.mu.Unlock()
	// An empty queue takes one transaction of any size.
	if b.closed || (b.bytes > 0 && b.bytes+bytes > b.store.Config.BackgroundBytes) {
		return false
	}
	b.cells += cells
	b.bytes += bytes
	q := b.queues[t]
	if q == nil {
		q = &bulkQueue{failed: lane{retries: true}}
		b.queues[t] = q
	}
	b.enqueue(t, q, &q.fresh, muts)
	return true
}

// AddOrGiveUp queues mutations that failed with err, or else gives them up.
func (b *Background) AddOrGiveUp(t *Table, muts []RowMutation, err error) {
	if !b.Add(t, muts) {
		b.giveUp(t, muts, err)
	}
}

// giveUp counts mutations that nobody tries any more, and says so.
func (b *Background) giveUp(t *Table, muts []RowMutation, err error) {
	for _, m := range muts {
		m.Secondaries.Fail(m.Err)
	}
	b.store.Counters.BackgroundDropped.Add(int64(len(muts)))
	b.store.Metrics.BackgroundDropped(len(muts))
	b.store.Log.Warn("background work given up; the next reader or writer of the rows resolves their locks", "table", t.Name, "rows", len(muts), "error", err)
}

// putAway moves the rows from a lane that are closed. b.mu is held.
func (b *Background) putAway(t *Table, q *bulkQueue, l *lane) {
	if !t.ill.some.Load() {
		return
	}
	l.pending = slices.DeleteFunc(l.pending, func(m RowMutation) bool {
		closed := t.IsClosed(m.Row)
		if closed {
			q.away = append(q.away, m)
		}
		return closed
	})
	if len(q.away) == 0 || q.waits {
		return
	}
	q.waits = true
	b.start(func(ctx context.Context) { b.awaitAway(ctx, t, q) })
}

// awaitAway waits for the rows that are away, one after the other, and sends those that are back.
func (b *Background) awaitAway(ctx context.Context, t *Table, q *bulkQueue) {
	for {
		b.mu.Lock()
		if len(q.away) == 0 {
			q.waits = false
			b.mu.Unlock()
			return
		}
		first := q.away[0]
		b.mu.Unlock()
		rctx, cancel := context.WithDeadline(ctx, first.deadline)
		_ = t.await(rctx, first.Row, false) // its deadline has passed, or the other rows are still away
		cancel()
		b.mu.Lock()
		back := lane{pending: q.away[:1:1]}
		if rest := q.away[1:]; len(rest) > 0 {
			q.away = slices.DeleteFunc(rest, func(m RowMutation) bool {
				closed := t.IsClosed(m.Row)
				if !closed {
					back.pending = append(back.pending, m)
				}
				return !closed
			})
		} else {
			q.away = nil
		}
		b.dropHopeless(t, &back)
		b.enqueue(t, q, &q.failed, back.pending)
		b.mu.Unlock()
	}
}

// enqueue adds mutations to a lane, and starts senders if the lane may have more. b.mu is
// held.
func (b *Background) enqueue(t *Table, q *bulkQueue, l *lane, muts []RowMutation) {
	l.pending = append(l.pending, muts...)
	maxSenders := 1
	if l.retries {
		maxSenders = maxTasks
	}
	// A sender may be busy for long with other rows, so it does not count as one for these.
	for n := 0; n < len(l.pending) && l.senders < maxSenders; n++ {
		l.senders++
		b.start(func(ctx context.Context) { b.sendLane(ctx, t, q, l) })
	}
}

// sendLane sends the rows of one lane until it is empty.
func (b *Background) sendLane(ctx context.Context, t *Table, q *bulkQueue, l *lane) {
	pause := b.store.Config.Backoff.Start()
	for {
		if l.retries {
			// These rows have failed before. An error means that ctx has ended, so
			// dropHopeless drops them all.
			_ = pause.Wait(ctx, 0)
		}
		b.mu.Lock()
		b.dropHopeless(t, l)
		b.putAway(t, q, l)
		batch := l.nextBatch()
		if len(batch) == 0 {
			l.senders--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()

		failed := b.sendBatch(ctx, t, l, batch)
		shared := slices.ContainsFunc(batch, func(m RowMutation) bool { return m.StartTS != batch[0].StartTS })
		for i := range failed {
			failed[i].shared = shared
		}
		b.NoteApplied(batch, failed)
		if len(failed) == 0 {
			pause = b.store.Config.Backoff.Start()
		}
		b.mu.Lock()
		b.uncount(batch)
		cells, bytes := sizeOf(failed)
		b.cells += cells
		b.bytes += bytes
		b.enqueue(t, q, &q.failed, failed)
		b.checkIdle()
		b.mu.Unlock()
	}
}

// sendBatch sends a batch and returns the rows that failed. The request ends at the first
// deadline in the batch, which is that of its first row.
func (b *Background) sendBatch(ctx context.Context, t *Table, l *lane, batch []RowMutation) (failed []RowMutation) {
	first := batch[0].deadline
	if soon := time.Now().Add(freshTimeout); !l.retries && soon.Before(first) {
		first = soon
	}
	ctx, cancel := context.WithDeadline(ctx, first)
	defer cancel()
	b.store.Counters.BackgroundRequests.Add(1)
	b.store.Metrics.Batch(len(batch))
	failed, _ = t.Apply(ctx, batch) // each has its own error
	return failed
}

// dropHopeless removes the rows from a lane that must not be tried any more: their deadline
// has passed, or close has given up, or their error is permanent. A permanent error counts
// only if no other transaction had rows in the request, because it may be about those.
// b.mu is held.
func (b *Background) dropHopeless(t *Table, l *lane) {
	now := time.Now()
	var last error
	var dropped []RowMutation
	keep := l.pending[:0]
	for _, m := range l.pending {
		if !b.abandoned && now.Before(m.deadline) && (m.shared || !Permanent(m.Err)) {
			keep = append(keep, m)
			continue
		}
		dropped = append(dropped, m)
		if m.Err != nil {
			last = m.Err
		}
	}
	if len(dropped) == 0 {
		return
	}
	l.pending = keep
	b.uncount(dropped)
	b.checkIdle()
	b.giveUp(t, dropped, last)
}

// uncount subtracts mutations from the queue's size. b.mu is held.
func (b *Background) uncount(muts []RowMutation) {
	cells, bytes := sizeOf(muts)
	b.cells -= cells
	b.bytes -= bytes
}

// nextBatch removes the rows of the next request from a lane. They belong to as many
// transactions as fit, or to one if they have failed before.
func (l *lane) nextBatch() []RowMutation {
	n, bytes := 0, 0
	for n < len(l.pending) && n < MaxBatchRows {
		m := &l.pending[n]
		if n > 0 && (bytes+m.size() > maxBatchBytes || (l.retries && m.StartTS != l.pending[0].StartTS)) {
			break
		}
		bytes += m.size()
		n++
	}
	batch := l.pending[:n:n]
	if l.pending = l.pending[n:]; len(l.pending) == 0 {
		l.pending = nil // so that the sent rows' memory becomes free
	}
	return batch
}

func sizeOf(muts []RowMutation) (cells, bytes int) {
	for i := range muts {
		cells += muts[i].Ops
		bytes += muts[i].size()
	}
	return cells, bytes
}

// Run starts f in the background and reports whether it did. It does not if maxTasks
// functions run already, or after close. The context of f ends when close gives up, or after
// Config.BackgroundTimeout.
func (b *Background) Run(f func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.tasks >= maxTasks {
		return false
	}
	b.tasks++
	ctx, release := b.newWork()
	go func() {
		ctx, cancel := context.WithTimeout(ctx, b.store.Config.BackgroundTimeout)
		defer cancel()
		f(ctx)
		release()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.tasks--
		b.checkIdle()
	}()
	return true
}

// checkIdle closes b.idle if close may return. b.mu is held.
func (b *Background) checkIdle() {
	if b.closed && b.cells == 0 && b.tasks == 0 {
		select {
		case <-b.idle:
		default:
			close(b.idle)
		}
	}
}

// close waits until all work has ended. When ctx ends, it gives up and abandons the rest.
func (b *Background) close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.checkIdle()
	b.mu.Unlock()
	select {
	case <-b.idle:
		b.abandon() // ends senders that pause before their next batch
		return nil
	case <-ctx.Done():
	}
	cells, tasks := b.abandon()
	<-b.idle // every request ends with its context
	return Ended(ctx, fmt.Sprintf("percolator: closing the client: background work was not completed (%d changes of cells, %d other tasks); the next readers and writers resolve its locks", cells, tasks), nil)
}

// abandon ends every goroutine's context, and returns how much work was left.
func (b *Background) abandon() (cells, tasks int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = true
	for _, cancel := range b.cancels {
		cancel()
	}
	return b.cells, b.tasks
}

// Queued returns how many changes of cells wait or are being sent, and about how many bytes
// of memory they take.
func (b *Background) Queued() (cells, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cells, b.bytes
}

// NoteApplied publishes hints for the observed cells in muts, and counts their rows for their
// commits, except for the rows that failed.
func (b *Background) NoteApplied(muts, failed []RowMutation) {
	// Not by row key: a batch may hold the same row for several transactions.
	skip := map[*bigtable.Mutation]bool{}
	for _, m := range failed {
		skip[m.Mut] = true
	}
	for _, m := range muts {
		if !skip[m.Mut] {
			b.store.Hints.Publish(m.Hints...)
			m.Secondaries.Done(1)
			m.Settles.Applied()
		}
	}
}
