package txn

import (
	"context"
	"slices"
	"sync"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Read batching (paper §2.5): if goroutines of one transaction, or of one snapshot, read
// cells of one table at the same time, the reads share requests. Reads of different
// transactions cannot: the filter of a request contains the read timestamp, because the
// newest write at one timestamp hides the one at another.
//
// If fewer than Config.BatchReads requests are under way, a read is sent at once, as
// without batching. Later reads wait, and share a request when one of those is answered.
// Each caller evaluates its own row: it resolves the locks in it and reads it again by
// itself, so no other caller waits for them. A caller that leaves does not end the
// request for the others; when the last one has left, the request is cancelled.

const (
	// maxBatchedRows bounds the rows of a batch. Further reads wait for the next one.
	maxBatchedRows = 128
	// maxBatchedColumns bounds the columns of a batch, because the request reads all of
	// them from every row.
	maxBatchedColumns = 8
)

// A readBatcher batches reads of a table at one timestamp.
type readBatcher struct {
	shared *readSharing
	table  *store.Table
	ts     tso.Timestamp

	mu      sync.Mutex
	running int            // requests under way
	waiting []*waitingRead // not in a batch yet
}

// A waitingRead is a read that waits for a shared request.
type waitingRead struct {
	row        string
	columns    []Column
	span       trace.Span
	batch      *readBatch    // nil: none yet
	startBatch chan struct{} // closed when this read's caller must start batch
	ended      bool          // answered, or the caller has left
	done       chan struct{}

	// raw and failed are set when done is closed. failed says that the request failed
	// before it answered this row.
	raw    bigtable.Row
	failed bool
}

// A readBatch is one request.
type readBatch struct {
	members []*waitingRead // the caller of the first one starts the request
	columns []Column
	waiting int                // callers that wait
	cancel  context.CancelFunc // nil: not started yet
}

// read reads columns of a row, alone or in a batch. f is the filter for reading it alone.
func (b *readBatcher) read(ctx context.Context, row string, columns []Column, f bigtable.Filter) (bigtable.Row, error) {
	b.mu.Lock()
	if b.running < b.shared.batchReads {
		b.running++
		b.mu.Unlock()
		raw, err := b.table.ReadRowOnce(ctx, row, f)
		b.sendNext() // now: the reads of other rows must not wait for this one's further tries
		if store.CutShort(ctx, err) {
			return b.table.ReadRow(ctx, row, f)
		}
		return raw, err
	}
	w := &waitingRead{row: row, columns: columns, span: trace.SpanFromContext(ctx), startBatch: make(chan struct{}), done: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	if !b.await(ctx, w) {
		return nil, store.Ended(ctx, "txn: waiting for a read of table "+b.table.Name, nil)
	}
	if w.failed {
		// Another row may have caused the error. Read this row alone, so that the
		// caller gets an error about its own row, if any.
		return b.table.ReadRow(ctx, row, f)
	}
	return w.raw, nil
}

// await returns true when w is answered, or false if ctx ends first. The caller of a batch's
// first member starts the request, with its own context without its cancellation. It does
// so even when it leaves, because other callers may wait for the answer.
func (b *readBatcher) await(ctx context.Context, w *waitingRead) bool {
	first := w.startBatch
	for {
		select {
		case <-w.done:
			return true
		case <-first:
			first = nil
			b.start(ctx, w.batch)
		case <-ctx.Done():
			if b.leave(w) && first != nil {
				b.start(ctx, w.batch)
			}
			return false
		}
	}
}

// leave removes a caller whose context has ended. It reports whether the caller is the
// first of a batch.
func (b *readBatcher) leave(w *waitingRead) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.batch == nil {
		b.waiting = slices.DeleteFunc(b.waiting, func(o *waitingRead) bool { return o == w })
		return false
	}
	if w.end(); w.batch.waiting == 0 && w.batch.cancel != nil {
		w.batch.cancel()
	}
	return w.batch.members[0] == w
}

// answer wakes the callers whose row has arrived. If all other callers have left, it cancels
// the request; last says that no row is missing, so the request ends by itself.
func (b *readBatcher) answer(batch *readBatch, members []*waitingRead, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range members {
		w.end()
		close(w.done)
	}
	if batch.waiting == 0 && !last {
		batch.cancel()
	}
}

// end removes a caller from the count of its batch. The caller of end holds the batcher's
// mutex.
func (w *waitingRead) end() {
	if !w.ended {
		w.ended = true
		w.batch.waiting--
	}
}

// sendNext makes the next batch of the waiting reads, in place of a request that has ended,
// and has the caller of its first read start it.
func (b *readBatcher) sendNext() {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, columns := b.chooseBatch()
	if n == 0 {
		b.running--
		return
	}
	batch := &readBatch{members: slices.Clone(b.waiting[:n]), columns: columns, waiting: n}
	b.waiting = slices.Delete(b.waiting, 0, n)
	for _, w := range batch.members {
		w.batch = batch
	}
	close(batch.members[0].startBatch)
}

// start sends the request of a batch, unless all its callers have left.
func (b *readBatcher) start(ctx context.Context, batch *readBatch) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.mu.Lock()
	batch.cancel = cancel
	wanted := batch.waiting > 0
	b.mu.Unlock()
	go func() {
		defer b.sendNext()
		defer cancel()
		if wanted {
			b.send(ctx, batch, store.Selection{Columns: batch.columns})
		}
	}()
}

// chooseBatch returns how many of the waiting reads fit into the next batch, and their
// columns.
func (b *readBatcher) chooseBatch() (n int, columns []Column) {
	bytes := 0
	for _, w := range b.waiting {
		all := columns
		for _, c := range w.columns {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
		bytes += len(w.row) + 16 // 16 bytes for the encoding around a key
		if n > 0 && (len(all) > maxBatchedColumns || n == maxBatchedRows || bytes > format.MaxRowListBytes || (store.Selection{Columns: all}).Cost() > store.FilterBudget) {
			break
		}
		columns = all
		n++
	}
	return n, columns
}

// send makes one request for the rows of a batch and answers its members.
func (b *readBatcher) send(ctx context.Context, batch *readBatch, sel store.Selection) {
	byRow := map[string][]*waitingRead{}
	var rows bigtable.RowList
	link := trace.Link{SpanContext: trace.SpanContextFromContext(ctx)}
	for i, w := range batch.members {
		if byRow[w.row] == nil {
			rows = append(rows, w.row)
		}
		byRow[w.row] = append(byRow[w.row], w)
		if i > 0 && link.SpanContext.IsValid() {
			w.span.AddLink(link)
		}
	}
	trace.SpanFromContext(ctx).SetAttributes(telemetry.AttrRows.Int(len(rows)))
	b.shared.counters.Batches.Add(1)
	b.shared.counters.Batched.Add(int64(len(batch.members)))
	b.shared.metrics.BatchSent(ctx, b.table.Name, len(batch.members))
	f := b.table.VisibleAt(sel, b.ts)
	// If it fails, each member tries its own row again.
	err := b.table.TryReadRows(ctx, rows, func(raw bigtable.Row) bool {
		members := byRow[raw.Key()]
		for i, w := range members {
			w.raw = raw
			if i > 0 {
				w.raw = cloneRow(raw) // each caller owns its row
			}
		}
		delete(byRow, raw.Key())
		b.answer(batch, members, len(byRow) == 0)
		return true
	}, bigtable.RowFilter(f))
	for _, members := range byRow {
		for _, w := range members {
			w.failed = err != nil
			close(w.done)
		}
	}
}

func cloneRow(row bigtable.Row) bigtable.Row {
	out := make(bigtable.Row, len(row))
	for family, items := range row {
		items = slices.Clone(items)
		for i := range items {
			items[i].Value = slices.Clone(items[i].Value)
		}
		out[family] = items
	}
	return out
}
