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

// This file is what the point reads of one transaction, or one snapshot, have in
// common: the read cache, which prefetching fills (prefetch.go), and the batches
// of reads that are under way at the same time (readbatch.go).

const (
	// maxCachedRows and maxCachedBytes bound a read cache. One that is full is
	// emptied: a transaction that reads that much does not come back to its first
	// rows soon.
	maxCachedRows  = 1024
	maxCachedBytes = 1 << 20
	// maxAskedColumns bounds what the client learns from one row.
	maxAskedColumns = 4 * maxPatternColumns
)

// A readSharing is what the reads of all transactions of a client share.
type readSharing struct {
	patterns patterns
	counters *store.Counters
	metrics  readMetrics
	// prefetchBytes and batchReads are as in Config.
	prefetchBytes, batchReads int
}

// reads are the point reads of one transaction or snapshot.
type reads struct {
	shared *readSharing
	name   string // of the transaction
	// budget of bytes that a read may be expected to bring along; 0: no
	// prefetching.
	budget int

	// Cells that were read ahead, and those that were asked for later.
	prefetched, prefetchUsed atomic.Int64
	// hasRemembered: a cell was kept that no Get has asked for.
	hasRemembered atomic.Bool

	mu       sync.Mutex
	firstID  rowID
	first    rowReads // of the first row: many transactions read one
	rows     map[rowID]*rowReads
	bytes    int
	batchers map[*store.Table]*readBatcher
}

type rowID struct{ table, row string }

// rowReads is what Gets asked for in one row.
type rowReads struct {
	started      bool // a Get has asked for first
	first        Column
	pattern      *pattern // nil until a second column is asked for
	laterColumns []Column // behind the first, each once, the first maxAskedColumns
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

// init makes r ready, and reports whether reads share anything.
func (r *reads) init(of *readSharing, name string, prefetch bool) (shared bool) {
	r.shared, r.name = of, name
	if prefetch {
		r.budget = max(of.prefetchBytes, 0)
	}
	return r.budget > 0 || of.batchReads > 0
}

// row returns what was asked for in a row; nil: nothing yet.
func (r *reads) row(id rowID) *rowReads {
	if r.firstID == id {
		return &r.first
	}
	return r.rows[id]
}

// addRow makes room for one more row.
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

// cached returns a cell that was read ahead.
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
			r.shared.metrics.prefetched(cell.Table, "used", 1)
			r.learnColumn(cell, row, len(c.value))
		}
		if !c.present {
			return nil, false, true
		}
		return append([]byte{}, c.value...), true, true
	}
	return nil, false, false
}

// remember keeps a cell's value that was read otherwise. What was read at the start
// timestamp stays what it is.
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

// beginRead notes that a cell is going to be read. For the first of its row, it
// returns what is worth reading along.
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

// endRead notes that a Get was answered by a request.
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

// learnColumn learns that a column was asked for in a row of which another was asked for
// first.
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

// nameTooLong: a column is not worth what its name takes, of a client's memory and of
// filters.
func nameTooLong(c Column) bool { return len(c.Family)+1+len(c.Qualifier) > store.MaxKnownColumnName }

func (r *rowReads) askedLater(c Column) bool {
	for _, a := range r.laterColumns {
		if a == c {
			return true
		}
	}
	return false
}

// cachePrefetched puts what was read ahead into the cache: those columns of raw, the stored
// form of a row, that can be decided from it alone. A locked column, or one with
// a damaged record, is left to the Get that asks for it.
func (r *reads) cachePrefetched(t *store.Table, key string, raw bigtable.Row, ahead []Column, ts tso.Timestamp) {
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
	e, err := recovery.Evaluate(t, raw, sel, ts, nil)
	if err != nil {
		return
	}
	e.Sort() // evaluate leaves that to readExact, which is not called here
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
		item, present := format.FindItem(e.Row[c.Family], c.Key())
		if row.pattern != nil {
			row.pattern.noteSize(c, len(item.Value))
		}
		if elsewhere[c] || row.askedLater(c) || r.bytes+len(item.Value) > maxCachedBytes {
			continue
		}
		n++
		r.bytes += len(item.Value) + len(c.Family) + len(c.Qualifier)
		row.cells = append(row.cells, cachedCell{column: c, value: bytes.Clone(item.Value), present: present})
	}
	r.prefetched.Add(n)
	r.shared.counters.Prefetched.Add(n)
	r.shared.metrics.prefetched(t.Name, "read", n)
}

func (r *reads) forgetPattern(cell Cell) {
	r.shared.patterns.forget(patternKey{cell.Table, r.name, cell.Column()})
}

// annotate adds to a transaction's span what was read ahead.
func (r *reads) annotate(s telemetry.Span) {
	if r == nil {
		return
	}
	if n := r.prefetched.Load(); n > 0 {
		s.Set(attrPrefetched.Int64(n), attrPrefetchUsed.Int64(r.prefetchUsed.Load()))
	}
}

// batchedRead returns how a row's first read is made; nil: by a request of its own.
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
