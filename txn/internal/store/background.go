package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Background does work that no caller waits for: it commits secondaries, in
// batches shared across transactions, removes what aborted transactions left,
// and clears locks behind reads. Its memory is bounded: what does not fit is
// refused, and the caller does it or leaves it to lazy lock resolution.
type Background struct {
	store *Store

	mu     sync.Mutex
	queues map[*Table]*bulkQueue
	cells  int // changes of cells that are queued or being sent
	bytes  int // of them, about
	tasks  int // running
	closed bool
	idle   chan struct{} // closed once closed, cells is 0 and tasks is 0
	// abandoned: close has given up. working ends what is being sent or run then.
	abandoned bool
	cancels   map[int]context.CancelFunc
	nextKey      int // key in working
}

// bulkQueue holds one table's unconditional row mutations. What was not tried
// yet and what is to be tried again wait apart, so that a row that keeps failing
// holds up nobody else's.
type bulkQueue struct {
	fresh, failed lane
}

// lane is one of them. Of what is fresh, one request is under way at a time, so
// what arrives meanwhile forms the next batch, and nothing waits when there is
// nothing to wait for. What has failed goes by transaction, maxTasks at a time:
// the Bigtable client tries a failing entry again and again within its request,
// and at the end of it does not tell which of the others were applied.
type lane struct {
	pending []RowMutation
	senders int
	retries bool
}

const (
	MaxBatchRows  = 1000
	maxBatchBytes = 4 << 20
	maxTasks      = 16
	// freshTimeout is for how long what fails in a first request can hold up what
	// arrives behind it.
	freshTimeout = 2 * time.Second
)

func newBackground(s *Store) *Background {
	return &Background{store: s, queues: map[*Table]*bulkQueue{}, idle: make(chan struct{}), cancels: map[int]context.CancelFunc{}}
}

// newWork returns a context for one goroutine, which ends when close gives up; release
// has to be called, without b.mu. b.mu is held.
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

// Add queues mutations and reports whether there was room for all of them.
// They are tried until Config.BackgroundTimeout is over and then given up: a
// roll-forward that is applied very late could bring a collected version back
// (design §5, hazard 9), and whoever meets the lock rolls it forward as well.
func (b *Background) Add(t *Table, muts []RowMutation) bool {
	deadline := time.Now().Add(b.store.Config.BackgroundTimeout)
	for i := range muts {
		muts[i].deadline = deadline
	}
	cells, bytes := sizeOf(muts)
	b.mu.Lock()
	defer b.mu.Unlock()
	// One transaction fits into an empty queue, however large it is.
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

// enqueue adds mutations to a lane and sees that somebody sends them. b.mu is held.
func (b *Background) enqueue(t *Table, q *bulkQueue, l *lane, muts []RowMutation) {
	l.pending = append(l.pending, muts...)
	most := 1
	if l.retries {
		most = maxTasks
	}
	for l.senders < min(most, len(l.pending)) {
		l.senders++
		ctx, release := b.newWork()
		go func() {
			defer release()
			b.sendLane(ctx, t, q, l)
		}()
	}
}

// sendLane empties one lane of a table's queue.
func (b *Background) sendLane(ctx context.Context, t *Table, q *bulkQueue, l *lane) {
	pause := b.store.Config.Backoff.Start()
	for {
		if l.retries {
			// What is here has failed before. An error is the end of ctx, after which
			// drop drops it all.
			_ = pause.Wait(ctx, 0)
		}
		b.mu.Lock()
		b.dropHopeless(t, l)
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

// sendBatch sends a batch and returns the rows to send again. No request outlives
// the first deadline in its batch.
func (b *Background) sendBatch(ctx context.Context, t *Table, l *lane, batch []RowMutation) (again []RowMutation) {
	first := batch[0].deadline
	if soon := time.Now().Add(freshTimeout); !l.retries && soon.Before(first) {
		first = soon
	}
	for _, m := range batch {
		if m.deadline.Before(first) {
			first = m.deadline
		}
	}
	ctx, cancel := context.WithDeadline(ctx, first)
	defer cancel()
	b.store.Counters.BackgroundRequests.Add(1)
	b.store.Metrics.Batch(len(batch))
	again, _ = t.Apply(ctx, batch) // each carries its own error
	return again
}

// dropHopeless takes the rows out of a lane that are not to be tried any more: their
// deadline is over, their error is one that will not pass, and of a request that
// no other transaction had a part in, or close has given up. b.mu is held.
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
		m.Secondaries.Fail(m.Err)
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
	b.store.Counters.BackgroundDropped.Add(int64(len(dropped)))
	b.store.Metrics.BackgroundDropped(len(dropped))
	b.store.Log.Warn("background work given up; the rows' locks are settled by whoever meets them", "table", t.Name, "rows", len(dropped), "error", last)
}

// uncount counts mutations out. b.mu is held.
func (b *Background) uncount(muts []RowMutation) {
	cells, bytes := sizeOf(muts)
	b.cells -= cells
	b.bytes -= bytes
}

// nextBatch takes the next request's rows out of a lane: of as many transactions as
// fit, or of one where it retries.
func (l *lane) nextBatch() []RowMutation {
	n, ops, bytes := 0, 0, 0
	for n < len(l.pending) && n < MaxBatchRows {
		m := &l.pending[n]
		if n > 0 && (ops+m.Ops > format.MaxMutations || bytes+m.size() > maxBatchBytes || (l.retries && m.StartTS != l.pending[0].StartTS)) {
			break
		}
		ops += m.Ops
		bytes += m.size()
		n++
	}
	batch := l.pending[:n:n]
	if l.pending = l.pending[n:]; len(l.pending) == 0 {
		l.pending = nil // lets go of what was sent
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

// Run starts f in the background unless too much is running already, and
// reports whether it did. f gets a context that ends when Close gives up, or
// after Config.BackgroundTimeout.
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

func (b *Background) checkIdle() {
	if b.closed && b.cells == 0 && b.tasks == 0 {
		select {
		case <-b.idle:
		default:
			close(b.idle)
		}
	}
}

// close waits until all work is done, or abandons it when ctx ends.
func (b *Background) close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.checkIdle()
	b.mu.Unlock()
	select {
	case <-b.idle:
		b.abandon() // those that pause before they look for more
		return nil
	case <-ctx.Done():
	}
	cells, tasks := b.abandon()
	<-b.idle // every request ends with its context
	return Ended(ctx, fmt.Sprintf("closing with background work under way, %d changes of cells and %d other tasks; locks are left to whoever meets them", cells, tasks), nil)
}

// abandon ends every goroutine's context, and says how much was left.
func (b *Background) abandon() (cells, tasks int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = true
	for _, cancel := range b.cancels {
		cancel()
	}
	return b.cells, b.tasks
}

// Queued is the number of changes of cells that wait or are being sent, and
// about how many bytes they take.
func (b *Background) Queued() (cells, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cells, b.bytes
}

// NoteApplied tells the watchers of the cells in muts, but for those that failed, and
// the spans of their commits.
func (b *Background) NoteApplied(muts, failed []RowMutation) {
	// Not by row: a batch holds those of several transactions.
	skip := map[*bigtable.Mutation]bool{}
	for _, m := range failed {
		skip[m.Mut] = true
	}
	for _, m := range muts {
		if !skip[m.Mut] {
			b.store.Hints.Publish(m.Hints...)
			m.Secondaries.Done(1)
		}
	}
}
