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
	// maxAskedColumns bounds what is learned of one row.
	maxAskedColumns = 4 * maxPatternColumns
)

// reads are the point reads of one transaction or snapshot.
type reads struct {
	client *Client
	name   string // of the transaction
	// budget of bytes that a read may be expected to bring along; 0: no
	// prefetching.
	budget int

	// Cells that were read ahead, and those that were asked for later.
	ahead, used atomic.Int64
	// remembers: a cell was kept that no Get has asked for.
	remembers atomic.Bool

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
	begun   bool // a Get has asked for first
	first   Column
	pattern *pattern // nil until a second column is asked for
	asked   []Column // behind the first, each once, the first maxAskedColumns
	cells   []cachedCell
}

// A cachedCell was read ahead at the timestamp of all reads here, with no lock in
// the way, so that it stays what it is.
type cachedCell struct {
	column  Column
	value   []byte
	present bool
	used    bool
}

// init makes r ready, and reports whether reads share anything.
func (r *reads) init(c *Client, name string, prefetch bool) (shared bool) {
	r.client, r.name = c, name
	if prefetch {
		r.budget = max(c.cfg.PrefetchBytes, 0)
	}
	return r.budget > 0 || c.cfg.BatchReads > 0
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

// recall returns a cell that was read ahead.
func (r *reads) recall(cell Cell) (value []byte, present, known bool) {
	if r == nil || r.budget == 0 && !r.remembers.Load() {
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
			r.used.Add(1)
			r.client.Counters.PrefetchUsed.Add(1)
			r.client.measure.reads.prefetched(cell.Table, "used", 1)
			r.note(cell, row, len(c.value))
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
	r.remembers.Store(true)
}

// begin notes that a cell is going to be read. For the first of its row, it
// returns what is worth reading along.
func (r *reads) begin(cell Cell) []Column {
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
	case row.begun:
		return nil
	}
	row.begun, row.first, row.pattern = true, cell.Column(), r.client.patterns.find(patternKey{cell.Table, r.name, cell.Column()})
	if row.pattern == nil {
		return nil
	}
	return row.pattern.begin(r.budget)
}

// answered notes that a Get was answered by a request.
func (r *reads) answered(cell Cell, size int) {
	if r == nil || r.budget == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if row := r.row(rowID{cell.Table, cell.Row}); row != nil {
		r.note(cell, row, size)
	}
}

// note learns that a column was asked for in a row of which another was asked for
// first.
func (r *reads) note(cell Cell, row *rowReads, size int) {
	if len(row.asked) == maxAskedColumns || cell.Column() == row.first || row.wasAsked(cell.Column()) {
		return
	}
	if longName(row.first) || longName(cell.Column()) {
		return
	}
	row.asked = append(row.asked, cell.Column())
	if row.pattern == nil {
		row.pattern = r.client.patterns.make(patternKey{cell.Table, r.name, row.first})
	}
	row.pattern.follow(cell.Column(), size)
}

// longName: a column is not worth what its name takes, of a client's memory and of
// filters.
func longName(c Column) bool { return len(c.Family)+1+len(c.Qualifier) > store.MaxKnownColumnName }

func (r *rowReads) wasAsked(c Column) bool {
	for _, a := range r.asked {
		if a == c {
			return true
		}
	}
	return false
}

// keep puts what was read ahead into the cache: those columns of raw, the stored
// form of a row, that can be decided from it alone. A lock in the way of one is
// left to those who ask for that column, and so is a damaged record.
func (r *reads) keep(t *store.Table, key string, raw bigtable.Row, ahead []Column, ts tso.Timestamp) {
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
			row.pattern.size(c, len(item.Value))
		}
		if elsewhere[c] || row.wasAsked(c) || r.bytes+len(item.Value) > maxCachedBytes {
			continue
		}
		n++
		r.bytes += len(item.Value) + len(c.Family) + len(c.Qualifier)
		row.cells = append(row.cells, cachedCell{column: c, value: bytes.Clone(item.Value), present: present})
	}
	r.ahead.Add(n)
	r.client.Counters.Prefetched.Add(n)
	r.client.measure.reads.prefetched(t.Name, "read", n)
}

// readCell reads one cell for Get, in one request with what is likely to be asked
// for next, or finds it in the cache.
func (v *View) readCell(ctx context.Context, cell Cell) (value []byte, present bool, err error) {
	if value, present, known := v.reads.recall(cell); known {
		return value, present, nil
	}
	sel := store.Selection{Columns: []Column{cell.Column()}}
	var ahead []Column
	for _, c := range v.reads.begin(cell) {
		if v.txn == nil || !v.txn.buffer.wrote(Cell{Table: cell.Table, Row: cell.Row, Family: c.Family, Qualifier: c.Qualifier}) {
			ahead = append(ahead, c)
		}
	}
	row, err := v.readColumns(ctx, cell.Row, sel, ahead)
	if err != nil && len(ahead) > 0 && ctx.Err() == nil && store.Refused(err) {
		// It may be because of what was to be read along: a family that is gone, a
		// value that is too large for an answer.
		v.reads.forget(cell)
		row, err = v.readColumns(ctx, cell.Row, sel, nil)
	}
	if err != nil {
		return nil, false, err
	}
	if items := row[cell.Family]; len(items) > 0 {
		present = true
		if value = items[0].Value; value == nil {
			value = []byte{}
		}
	}
	v.reads.answered(cell, len(value))
	return value, present, nil
}

func (r *reads) forget(cell Cell) {
	r.client.patterns.forget(patternKey{cell.Table, r.name, cell.Column()})
}

// readColumns reads some columns of a row, and puts others along into the cache.
func (v *View) readColumns(ctx context.Context, key string, sel store.Selection, ahead []Column) (bigtable.Row, error) {
	t, err := v.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, span := v.traced(ctx)
	wide := store.Selection{Columns: append(sel.Columns[:len(sel.Columns):len(sel.Columns)], ahead...)}
	row, raw, err := recovery.SettledRow(ctx, v.client.Resolver, t, key, sel, wide.VisibleAt(v.ts, t.Schema.Current().ReadFamilies()), v.ts, v.reads.batched(t, wide, v.ts))
	err = v.client.SafePoint.AfterRead(ctx, v.ts, err)
	span.EndWith(err)
	if err != nil {
		return nil, err
	}
	if len(ahead) > 0 {
		v.reads.keep(t, key, raw, ahead, v.ts)
	}
	if v.txn == nil {
		return row, nil
	}
	return v.txn.overlayRow(v.name, key, sel, row), nil
}

// wrote reports whether the transaction itself put or deleted a cell.
func (b *buffer) wrote(cell Cell) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.rows[cell.Table][cell.Row][cell.Column()]
	return w != nil && w.Kind != KindLock
}
