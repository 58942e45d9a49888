package txn

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The point reads of one transaction, or one snapshot, share a cache, which prefetching fills
// (prefetch.go), and batches of reads that are under way at the same time (readbatch.go).

const (
	// maxCachedRows and maxCachedBytes bound the cache of a transaction. A full cache is
	// emptied: a transaction that reads so much rarely returns to its first rows.
	maxCachedRows  = 1024
	maxCachedBytes = 1 << 20
	// maxAskedColumns bounds what the client learns from one row.
	maxAskedColumns = 4 * maxPatternColumns
)

// A readSharing is what the reads of all transactions and snapshots of a client share.
type readSharing struct {
	patterns patterns
	counters *store.Counters
	metrics  telemetry.Reads
	// prefetchBytes and batchReads are Config.PrefetchBytes and Config.BatchReads.
	prefetchBytes, batchReads int
}

// reads are the point reads of one transaction or snapshot.
type reads struct {
	shared *readSharing
	name   string // of the transaction
	// budget is how many bytes one read may prefetch, by what the client expects; 0: no
	// prefetching.
	budget int

	// prefetched counts the cells that were read ahead, and prefetchUsed those that a
	// later Get asked for.
	prefetched, prefetchUsed atomic.Int64
	// hasRemembered says that remember has stored a cell.
	hasRemembered atomic.Bool

	mu       sync.Mutex
	firstID  rowID
	first    rowReads // of the first row; without a map, because many transactions read only one
	rows     map[rowID]*rowReads
	bytes    int
	batchers map[*store.Table]*readBatcher
}

type rowID struct{ table, row string }

// rowReads is what Gets asked for in one row, and what is cached of it.
type rowReads struct {
	started      bool // a Get has asked for the column first
	first        Column
	pattern      *pattern // nil until a second column is asked for
	laterColumns []Column // asked for after first, each once, at most maxAskedColumns
	cells        []cachedCell
}

// A cachedCell was read ahead at the timestamp of all reads here, and was not locked, so
// its value cannot change.
type cachedCell struct {
	column  Column
	value   []byte
	present bool
	used    bool
}

// init prepares r. It reports whether the reads share anything at all.
func (r *reads) init(shared *readSharing, name string, prefetch bool) (sharing bool) {
	r.shared, r.name = shared, name
	if prefetch {
		r.budget = max(shared.prefetchBytes, 0)
	}
	return r.budget > 0 || shared.batchReads > 0
}

// row returns the reads of a row, or nil if there was none yet.
func (r *reads) row(id rowID) *rowReads {
	if r.firstID == id {
		return &r.first
	}
	return r.rows[id]
}

// addRow adds a row. If the cache is full, it is emptied first.
func (r *reads) addRow(id rowID) *rowReads {
	if len(r.rows) >= maxCachedRows || r.bytes >= maxCachedBytes {
		r.firstID, r.first, r.bytes = rowID{}, rowReads{}, 0
		clear(r.rows)
	}
	if r.firstID == (rowID{}) {
		r.firstID = id
		return &r.first
	}
	if r.rows == nil {
		r.rows = map[rowID]*rowReads{}
	}
	row := &rowReads{}
	r.rows[id] = row
	return row
}

// cached returns a cell from the cache. known is false if the cell is not in it.
func (r *reads) cached(cell Cell) (value []byte, present, known bool) {
	if r == nil || r.budget == 0 && !r.hasRemembered.Load() {
		return nil, false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.row(rowID{cell.Table, cell.Row})
	if row == nil {
		return nil, false, false
	}
	for i := range row.cells {
		c := &row.cells[i]
		if c.column != cell.Column() {
			continue
		}
		if !c.used {
			c.used = true
			r.prefetchUsed.Add(1)
			r.shared.counters.PrefetchUsed.Add(1)
			r.shared.metrics.Prefetched(cell.Table, "used", 1)
			r.learnColumn(cell, row, len(c.value))
		}
		if !c.present {
			return nil, false, true
		}
		return append([]byte{}, c.value...), true, true
	}
	return nil, false, false
}

// remember caches a cell that changes.Observe has read. A value at the start timestamp never
// changes.
func (r *reads) remember(cell Cell, value []byte, present bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := rowID{cell.Table, cell.Row}
	row := r.row(id)
	if row == nil {
		row = r.addRow(id)
	}
	r.bytes += len(value)
	row.cells = append(row.cells, cachedCell{column: cell.Column(), value: value, present: present, used: true})
	r.hasRemembered.Store(true)
}

// beginRead notes that a request will read a cell. If the cell is the first of its row, it
// returns the columns that are worth prefetching.
func (r *reads) beginRead(cell Cell) []Column {
	if r == nil || r.budget == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := rowID{cell.Table, cell.Row}
	row := r.row(id)
	switch {
	case row == nil:
		row = r.addRow(id)
	case row.started:
		return nil
	}
	row.started, row.first, row.pattern = true, cell.Column(), r.shared.patterns.find(patternKey{cell.Table, r.name, cell.Column()})
	if row.pattern == nil {
		return nil
	}
	return row.pattern.beginRow(r.budget)
}

// endRead notes that a request has read a cell, with a value of size bytes.
func (r *reads) endRead(cell Cell, size int) {
	if r == nil || r.budget == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if row := r.row(rowID{cell.Table, cell.Row}); row != nil {
		r.learnColumn(cell, row, size)
	}
}

// learnColumn learns that a transaction asked for a column of a row after the row's first
// column.
func (r *reads) learnColumn(cell Cell, row *rowReads, size int) {
	if len(row.laterColumns) == maxAskedColumns || cell.Column() == row.first || row.askedLater(cell.Column()) {
		return
	}
	if nameTooLong(row.first) || nameTooLong(cell.Column()) {
		return
	}
	row.laterColumns = append(row.laterColumns, cell.Column())
	if row.pattern == nil {
		row.pattern = r.shared.patterns.findOrAdd(patternKey{cell.Table, r.name, row.first})
	}
	row.pattern.count(cell.Column(), size)
}

// nameTooLong reports whether a column's name takes so much of a client's memory and of
// filters that the column is not worth prefetching.
func nameTooLong(c Column) bool { return len(c.Family)+1+len(c.Qualifier) > store.MaxKnownColumnName }

func (r *rowReads) askedLater(c Column) bool {
	for _, a := range r.laterColumns {
		if a == c {
			return true
		}
	}
	return false
}

// cachePrefetched caches the columns that were read ahead. raw is the stored form of a row. It
// caches only columns that raw alone can decide. It leaves a locked column, or one with a
// damaged record, to the Get that asks for it.
func (r *reads) cachePrefetched(ctx context.Context, t *store.Table, key string, raw bigtable.Row, ahead []Column, ts tso.Timestamp) {
	locked := map[Column]bool{}
	for _, item := range raw[format.LockFamily] {
		c, _, err := format.MetadataCell(t.Name, key, item)
		if err != nil {
			return
		}
		locked[c] = true
	}
	var sel store.Selection
	for _, c := range ahead {
		if !locked[c] {
			sel.Columns = append(sel.Columns, c)
		}
	}
	if len(sel.Columns) == 0 {
		return
	}
	e, err := recovery.Evaluate(ctx, t, raw, sel, ts, nil)
	if err != nil {
		return
	}
	e.Sort() // Evaluate leaves sorting to ReadExact, which is not called here
	// The values of these columns are at another timestamp and were not read.
	elsewhere := map[Column]bool{}
	for _, x := range e.Exact {
		elsewhere[x.Column] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.row(rowID{t.Name, key})
	if row == nil {
		return
	}
	n := int64(0)
	for _, c := range sel.Columns {
		item, present := store.FindColumn(e.Row[c.Family], c.Key())
		if row.pattern != nil {
			row.pattern.noteSize(c, len(item.Value))
		}
		if elsewhere[c] || row.askedLater(c) || r.bytes+len(item.Value) > maxCachedBytes {
			continue
		}
		n++
		r.bytes += len(item.Value)
		row.cells = append(row.cells, cachedCell{column: c, value: bytes.Clone(item.Value), present: present})
	}
	r.prefetched.Add(n)
	r.shared.counters.Prefetched.Add(n)
	r.shared.metrics.Prefetched(t.Name, "read", n)
}

// forgetPattern forgets the pattern of rows whose first column is the cell's.
func (r *reads) forgetPattern(cell Cell) {
	r.shared.patterns.forget(patternKey{cell.Table, r.name, cell.Column()})
}

// annotate adds the counts of prefetched cells to a transaction's span.
func (r *reads) annotate(s telemetry.Span) {
	if r == nil {
		return
	}
	if n := r.prefetched.Load(); n > 0 {
		s.Set(telemetry.AttrPrefetched.Int64(n), telemetry.AttrPrefetchUsed.Int64(r.prefetchUsed.Load()))
	}
}

// batchedRead returns a function that reads a row in a batch, or nil if the read must be a
// request of its own.
func (r *reads) batchedRead(t *store.Table, sel store.Selection, ts tso.Timestamp) recovery.ReadFunc {
	if r == nil || r.shared.batchReads == 0 || len(sel.Columns) > maxBatchedColumns {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.batchers[t]
	if b == nil {
		b = &readBatcher{shared: r.shared, table: t, ts: ts}
		if r.batchers == nil {
			r.batchers = map[*store.Table]*readBatcher{}
		}
		r.batchers[t] = b
	}
	return func(ctx context.Context, row string, f bigtable.Filter) (bigtable.Row, error) {
		return b.read(ctx, row, sel.Columns, f)
	}
}
