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
	rows   int // queued or being sent
	tasks  int // running
	closed bool
	idle   chan struct{} // closed once closed, rows is 0 and tasks is 0
}

// bulkQueue holds one table's unconditional row mutations. One request is
// under way per table at a time, so what arrives meanwhile forms the next
// batch, and nothing waits when there is nothing to wait for.
type bulkQueue struct {
	pending []queuedRow
	sending bool
}

type queuedRow struct {
	rowMutation
	deadline time.Time
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
func (b *background) add(t *table, muts []rowMutation) bool {
	deadline := time.Now().Add(b.client.cfg.BackgroundTimeout)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.rows+len(muts) > b.client.cfg.BackgroundRows {
		return false
	}
	b.rows += len(muts)
	q := b.queues[t]
	if q == nil {
		q = &bulkQueue{}
		b.queues[t] = q
	}
	for _, m := range muts {
		q.pending = append(q.pending, queuedRow{m, deadline})
	}
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
		batch := takeBatch(q)
		if len(batch) == 0 {
			q.sending = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()

		failed := b.try(t, batch)
		if len(failed) > 0 {
			// An error here is the caller's context, which ends only when close
			// gives up: then everything that is left fails at once.
			_ = pause.wait(b.ctx, 0)
		} else {
			pause = b.client.cfg.Backoff.start()
		}
		b.mu.Lock()
		q.pending = append(failed, q.pending...)
		b.rows -= len(batch) - len(failed)
		b.checkIdle()
		b.mu.Unlock()
	}
}

func takeBatch(q *bulkQueue) []queuedRow {
	n, ops := 0, 0
	for n < len(q.pending) && n < maxBatchRows && (n == 0 || ops+q.pending[n].ops <= maxMutations) {
		ops += q.pending[n].ops
		n++
	}
	batch := q.pending[:n:n]
	q.pending = q.pending[n:]
	return batch
}

// try sends a batch and returns the rows to send again. Rows whose deadline is
// over are given up: a roll-forward that is applied very late could bring a
// collected version back (design §5, hazard 9), and whoever meets the lock
// rolls it forward as well.
func (b *background) try(t *table, batch []queuedRow) (again []queuedRow) {
	muts := make([]rowMutation, len(batch))
	deadlines := make(map[string]time.Time, len(batch))
	for i, q := range batch {
		muts[i] = q.rowMutation
		deadlines[q.row] = q.deadline
	}
	failed, err := t.apply(b.ctx, muts)
	if err == nil {
		return nil
	}
	now, dropped := time.Now(), 0
	for _, m := range failed {
		if b.ctx.Err() != nil || permanent(err) || now.After(deadlines[m.row]) {
			dropped++
			continue
		}
		again = append(again, queuedRow{m, deadlines[m.row]})
	}
	if dropped > 0 {
		b.client.counters.backgroundDropped.Add(int64(dropped))
		b.client.log.Warn("background work given up; the rows' locks are settled by whoever meets them", "table", t.name, "rows", dropped, "error", err)
	}
	return again
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
	if b.closed && b.rows == 0 && b.tasks == 0 {
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
	rows := b.rows
	b.mu.Unlock()
	b.cancel()
	<-b.idle // every request ends with its context
	return ended(ctx, fmt.Sprintf("closing with %d rows of background work; their locks are left to whoever meets them", rows), nil)
}

// flush waits until everything that is queued has been sent or given up.
func (b *background) queued() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rows
}
