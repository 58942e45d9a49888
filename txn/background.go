package txn

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// background does work that no caller waits for: it commits secondaries, in
// batches shared across transactions, removes what aborted transactions left,
// and clears locks behind reads. Its memory is bounded: what does not fit is
// refused, and the caller does it or leaves it to lazy lock resolution.
type background struct {
	client *Client
	ctx    context.Context // ends when close gives up
	cancel context.CancelFunc

	mu     sync.Mutex
	queues map[*table]*bulkQueue
	cells  int // changes of cells that are queued or being sent
	tasks  int // running
	closed bool
	idle   chan struct{} // closed once closed, cells is 0 and tasks is 0
}

// bulkQueue holds one table's unconditional row mutations. One request is
// under way per table at a time, so what arrives meanwhile forms the next
// batch, and nothing waits when there is nothing to wait for.
type bulkQueue struct {
	pending []rowMutation
	sending bool
}

const (
	maxBatchRows = 1000
	maxTasks     = 16
)

func newBackground(c *Client) *background {
	b := &background{client: c, queues: map[*table]*bulkQueue{}, idle: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// add queues mutations and reports whether there was room for all of them.
// They are tried until Config.BackgroundTimeout is over and then given up: a
// roll-forward that is applied very late could bring a collected version back
// (design §5, hazard 9), and whoever meets the lock rolls it forward as well.
func (b *background) add(t *table, muts []rowMutation) bool {
	cells := 0
	deadline := time.Now().Add(b.client.cfg.BackgroundTimeout)
	for i := range muts {
		cells += muts[i].ops
		muts[i].deadline = deadline
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// One transaction fits into an empty queue, however large it is.
	if b.closed || (b.cells > 0 && b.cells+cells > b.client.cfg.BackgroundCells) {
		return false
	}
	b.cells += cells
	q := b.queues[t]
	if q == nil {
		q = &bulkQueue{}
		b.queues[t] = q
	}
	q.pending = append(q.pending, muts...)
	if !q.sending {
		q.sending = true
		go b.send(t, q)
	}
	return true
}

// send empties one table's queue.
func (b *background) send(t *table, q *bulkQueue) {
	pause := b.client.cfg.Backoff.start()
	for {
		b.mu.Lock()
		b.drop(t, q)
		batch := takeBatch(q)
		if len(batch) == 0 {
			q.sending = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()

		failed := b.try(t, batch)
		b.client.applied(batch, failed)
		if len(failed) > 0 {
			// An error here is the end of b.ctx, after which drop drops it all.
			_ = pause.wait(b.ctx, 0)
		} else {
			pause = b.client.cfg.Backoff.start()
		}
		b.mu.Lock()
		q.pending = append(failed, q.pending...)
		b.cells -= countOps(batch) - countOps(failed)
		b.checkIdle()
		b.mu.Unlock()
	}
}

// try sends a batch and returns the rows to send again. No request outlives
// the first deadline in its batch.
func (b *background) try(t *table, batch []rowMutation) (again []rowMutation) {
	first := batch[0].deadline
	for _, m := range batch {
		if m.deadline.Before(first) {
			first = m.deadline
		}
	}
	ctx, cancel := context.WithDeadline(b.ctx, first)
	defer cancel()
	again, _ = t.apply(ctx, batch) // each carries its own error
	return again
}

// drop takes the rows out of a queue that are not to be tried any more: their
// deadline is over, their error is one that will not pass, or close has given
// up. b.mu is held.
func (b *background) drop(t *table, q *bulkQueue) {
	now, before := time.Now(), countOps(q.pending)
	var last error
	dropped := 0
	keep := q.pending[:0]
	for _, m := range q.pending {
		if b.ctx.Err() == nil && now.Before(m.deadline) && !permanent(m.err) {
			keep = append(keep, m)
			continue
		}
		dropped++
		m.secondaries.fail(m.err)
		if m.err != nil {
			last = m.err
		}
	}
	if dropped == 0 {
		return
	}
	q.pending = keep
	b.cells -= before - countOps(keep)
	b.checkIdle()
	b.client.counters.backgroundDropped.Add(int64(dropped))
	b.client.metrics.gaveUp(dropped)
	b.client.log.Warn("background work given up; the rows' locks are settled by whoever meets them", "table", t.name, "rows", dropped, "error", last)
}

func takeBatch(q *bulkQueue) []rowMutation {
	n, ops := 0, 0
	for n < len(q.pending) && n < maxBatchRows && (n == 0 || ops+q.pending[n].ops <= maxMutations) {
		ops += q.pending[n].ops
		n++
	}
	batch := q.pending[:n:n]
	q.pending = q.pending[n:]
	return batch
}

func countOps(muts []rowMutation) int {
	n := 0
	for _, m := range muts {
		n += m.ops
	}
	return n
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
	go func() {
		ctx, cancel := context.WithTimeout(b.ctx, b.client.cfg.BackgroundTimeout)
		defer cancel()
		f(ctx)
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
		b.cancel()
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	cells, tasks := b.cells, b.tasks
	b.mu.Unlock()
	b.cancel()
	<-b.idle // every request ends with its context
	return ended(ctx, fmt.Sprintf("closing with background work under way, %d changes of cells and %d other tasks; locks are left to whoever meets them", cells, tasks), nil)
}

// queued is the number of changes of cells that wait or are being sent.
func (b *background) queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cells
}
