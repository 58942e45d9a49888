package txn

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
)

// background does work that no caller waits for: it commits secondaries, in
// batches shared across transactions, removes what aborted transactions left,
// and clears locks behind reads. Its memory is bounded: what does not fit is
// refused, and the caller does it or leaves it to lazy lock resolution.
type background struct {
	store *store

	mu     sync.Mutex
	queues map[*table]*bulkQueue
	cells  int // changes of cells that are queued or being sent
	bytes  int // of them, about
	tasks  int // running
	closed bool
	idle   chan struct{} // closed once closed, cells is 0 and tasks is 0
	// abandoned: close has given up. working ends what is being sent or run then.
	abandoned bool
	working   map[int]context.CancelFunc
	next      int // key in working
}

// bulkQueue holds one table's unconditional row mutations. What was not tried
// yet and what is to be tried again wait apart, so that a row that keeps failing
// holds up nobody else's.
type bulkQueue struct {
	fresh, again lane
}

// lane is one of them. Of what is fresh, one request is under way at a time, so
// what arrives meanwhile forms the next batch, and nothing waits when there is
// nothing to wait for. What has failed goes by transaction, maxTasks at a time:
// the Bigtable client tries a failing entry again and again within its request,
// and at the end of it does not tell which of the others were applied.
type lane struct {
	pending []rowMutation
	senders int
	retries bool
}

const (
	maxBatchRows  = 1000
	maxBatchBytes = 4 << 20
	maxTasks      = 16
	// freshTimeout is for how long what fails in a first request can hold up what
	// arrives behind it.
	freshTimeout = 2 * time.Second
)

func newBackground(s *store) *background {
	return &background{store: s, queues: map[*table]*bulkQueue{}, idle: make(chan struct{}), working: map[int]context.CancelFunc{}}
}

// work returns a context for one goroutine, which ends when close gives up; release
// has to be called, without b.mu. b.mu is held.
func (b *background) work() (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancel(untraced)
	if b.abandoned {
		cancel()
	}
	key := b.next
	b.next++
	b.working[key] = cancel
	return ctx, func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.working, key)
	}
}

// add queues mutations and reports whether there was room for all of them.
// They are tried until Config.BackgroundTimeout is over and then given up: a
// roll-forward that is applied very late could bring a collected version back
// (design §5, hazard 9), and whoever meets the lock rolls it forward as well.
func (b *background) add(t *table, muts []rowMutation) bool {
	deadline := time.Now().Add(b.store.cfg.BackgroundTimeout)
	for i := range muts {
		muts[i].deadline = deadline
	}
	cells, bytes := size(muts)
	b.mu.Lock()
	defer b.mu.Unlock()
	// One transaction fits into an empty queue, however large it is.
	if b.closed || (b.bytes > 0 && b.bytes+bytes > b.store.cfg.BackgroundBytes) {
		return false
	}
	b.cells += cells
	b.bytes += bytes
	q := b.queues[t]
	if q == nil {
		q = &bulkQueue{again: lane{retries: true}}
		b.queues[t] = q
	}
	b.put(t, q, &q.fresh, muts)
	return true
}

// put adds mutations to a lane and sees that somebody sends them. b.mu is held.
func (b *background) put(t *table, q *bulkQueue, l *lane, muts []rowMutation) {
	l.pending = append(l.pending, muts...)
	most := 1
	if l.retries {
		most = maxTasks
	}
	for l.senders < min(most, len(l.pending)) {
		l.senders++
		ctx, release := b.work()
		go func() {
			defer release()
			b.send(ctx, t, q, l)
		}()
	}
}

// send empties one lane of a table's queue.
func (b *background) send(ctx context.Context, t *table, q *bulkQueue, l *lane) {
	pause := b.store.cfg.Backoff.start()
	for {
		if l.retries {
			// What is here has failed before. An error is the end of ctx, after which
			// drop drops it all.
			_ = pause.wait(ctx, 0)
		}
		b.mu.Lock()
		b.drop(t, l)
		batch := l.take()
		if len(batch) == 0 {
			l.senders--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()

		failed := b.try(ctx, t, l, batch)
		shared := slices.ContainsFunc(batch, func(m rowMutation) bool { return m.startTS != batch[0].startTS })
		for i := range failed {
			failed[i].shared = shared
		}
		b.applied(batch, failed)
		if len(failed) == 0 {
			pause = b.store.cfg.Backoff.start()
		}
		b.mu.Lock()
		b.remove(batch)
		cells, bytes := size(failed)
		b.cells += cells
		b.bytes += bytes
		b.put(t, q, &q.again, failed)
		b.checkIdle()
		b.mu.Unlock()
	}
}

// try sends a batch and returns the rows to send again. No request outlives
// the first deadline in its batch.
func (b *background) try(ctx context.Context, t *table, l *lane, batch []rowMutation) (again []rowMutation) {
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
	b.store.counters.backgroundRequests.Add(1)
	b.store.metrics.batch(len(batch))
	again, _ = t.apply(ctx, batch) // each carries its own error
	return again
}

// drop takes the rows out of a lane that are not to be tried any more: their
// deadline is over, their error is one that will not pass, and of a request that
// no other transaction had a part in, or close has given up. b.mu is held.
func (b *background) drop(t *table, l *lane) {
	now := time.Now()
	var last error
	var dropped []rowMutation
	keep := l.pending[:0]
	for _, m := range l.pending {
		if !b.abandoned && now.Before(m.deadline) && (m.shared || !permanent(m.err)) {
			keep = append(keep, m)
			continue
		}
		dropped = append(dropped, m)
		m.secondaries.fail(m.err)
		if m.err != nil {
			last = m.err
		}
	}
	if len(dropped) == 0 {
		return
	}
	l.pending = keep
	b.remove(dropped)
	b.checkIdle()
	b.store.counters.backgroundDropped.Add(int64(len(dropped)))
	b.store.metrics.gaveUp(len(dropped))
	b.store.log.Warn("background work given up; the rows' locks are settled by whoever meets them", "table", t.name, "rows", len(dropped), "error", last)
}

// remove counts mutations out. b.mu is held.
func (b *background) remove(muts []rowMutation) {
	cells, bytes := size(muts)
	b.cells -= cells
	b.bytes -= bytes
}

// take takes the next request's rows out of a lane: of as many transactions as
// fit, or of one where it retries.
func (l *lane) take() []rowMutation {
	n, ops, bytes := 0, 0, 0
	for n < len(l.pending) && n < maxBatchRows {
		m := &l.pending[n]
		if n > 0 && (ops+m.ops > maxMutations || bytes+m.size() > maxBatchBytes || (l.retries && m.startTS != l.pending[0].startTS)) {
			break
		}
		ops += m.ops
		bytes += m.size()
		n++
	}
	batch := l.pending[:n:n]
	if l.pending = l.pending[n:]; len(l.pending) == 0 {
		l.pending = nil // lets go of what was sent
	}
	return batch
}

// size bounds the memory that a mutation takes.
func (m *rowMutation) size() int {
	const opBytes = 256 // with its messages, short names and a record
	return opBytes*m.ops + len(m.row) + m.names
}

func size(muts []rowMutation) (cells, bytes int) {
	for i := range muts {
		cells += muts[i].ops
		bytes += muts[i].size()
	}
	return cells, bytes
}

// run starts f in the background unless too much is running already, and
// reports whether it did. f gets a context that ends when Close gives up, or
// after Config.BackgroundTimeout.
func (b *background) run(f func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.tasks >= maxTasks {
		return false
	}
	b.tasks++
	ctx, release := b.work()
	go func() {
		ctx, cancel := context.WithTimeout(ctx, b.store.cfg.BackgroundTimeout)
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

func (b *background) checkIdle() {
	if b.closed && b.cells == 0 && b.tasks == 0 {
		select {
		case <-b.idle:
		default:
			close(b.idle)
		}
	}
}

// close waits until all work is done, or abandons it when ctx ends.
func (b *background) close(ctx context.Context) error {
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
	return ended(ctx, fmt.Sprintf("closing with background work under way, %d changes of cells and %d other tasks; locks are left to whoever meets them", cells, tasks), nil)
}

// abandon ends every goroutine's context, and says how much was left.
func (b *background) abandon() (cells, tasks int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.abandoned = true
	for _, cancel := range b.working {
		cancel()
	}
	return b.cells, b.tasks
}

// queued is the number of changes of cells that wait or are being sent, and
// about how many bytes they take.
func (b *background) queued() (cells, bytes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cells, b.bytes
}

// applied tells the watchers of the cells in muts, but for those that failed, and
// the spans of their commits.
func (b *background) applied(muts, failed []rowMutation) {
	// Not by row: a batch holds those of several transactions.
	skip := map[*bigtable.Mutation]bool{}
	for _, m := range failed {
		skip[m.mut] = true
	}
	for _, m := range muts {
		if !skip[m.mut] {
			b.store.hints.hint(m.hints...)
			m.secondaries.done(1)
		}
	}
}
