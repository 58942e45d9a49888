package txn

import (
	"context"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/buffer"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A Reader reads one table: a [Table] of a transaction, or a [View] of a snapshot.
type Reader interface {
	// Get reads one cell, as [View.Get] does.
	Get(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error)
	// ReadRow reads one row, as [View.ReadRow] does.
	ReadRow(ctx context.Context, row string, opts ...ReadOption) (bigtable.Row, error)
	// ReadRows reads rows, as [View.ReadRows] does.
	ReadRows(ctx context.Context, rs bigtable.RowSet, opts ...ReadOption) iter.Seq2[bigtable.Row, error]
}

var (
	_ Reader = (*View)(nil)
	_ Reader = (*Table)(nil)
)

// A View reads one table at one timestamp. In a transaction it also shows the transaction's
// own writes. A read of a locked cell waits while the lock's owner is alive, and resolves
// the lock if the owner is dead. If Bigtable does not answer, a read tries again until its
// context ends. A client has at most 1,000 reads under way; further ones wait.
//
// Rows have Bigtable's type: families with their cells in order of the columns, one cell
// for each column. ReadItem.Timestamp is the commit timestamp, in microseconds since the
// epoch, of the transaction that wrote the value. For data from before the table was
// adopted it is the cell's own timestamp, and for the transaction's own writes it is 0.
type View struct {
	client *Client
	name   string
	ts     tso.Timestamp // of a snapshot
	txn    *Txn          // nil in a snapshot
	reads  *reads        // nil if reads share nothing
}

// at returns the timestamp of the reads.
func (v *View) at() tso.Timestamp {
	if v.txn != nil {
		return v.txn.startTS
	}
	return v.ts
}

// Get reads one cell. ok is false if the cell is absent. A value that is present may be
// empty, and is never nil. The caller owns the slice. Get fails with ErrTooOld if garbage
// collection has passed the timestamp, and with ErrDone after the end of the transaction.
func (v *View) Get(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error) {
	return v.get(ctx, row, family, qualifier, false)
}

// get is Get. writes says that the transaction will write the cell.
func (v *View) get(ctx context.Context, row, family, qualifier string, writes bool) (value []byte, ok bool, err error) {
	cell := Cell{Table: v.name, Row: row, Family: family, Qualifier: qualifier}
	if err := format.CheckCell(cell); err != nil {
		return nil, false, err
	}
	if v.txn != nil {
		if err := v.txn.checkReadable(); err != nil {
			return nil, false, err
		}
		if kind, value, ok := v.txn.buffer.Get(cell); ok {
			return value, kind == format.KindPut, nil
		}
	} else if err := v.client.resolver.CheckOpen(); err != nil {
		return nil, false, err
	}
	if v.txn.mayQueue(ctx) {
		value, ok, err = v.readCellInTurn(ctx, cell, writes)
	} else {
		value, ok, err = v.readCell(ctx, cell)
	}
	if err != nil {
		return nil, false, err
	}
	if v.txn != nil && v.txn.opts.serializable {
		v.txn.buffer.Promote(cell)
	}
	return value, ok, nil
}

// ReadRow reads a row, or the columns of it that the options choose. It returns nil if the
// row has no visible cell in them. Limit and Reverse have no effect.
func (v *View) ReadRow(ctx context.Context, row string, opts ...ReadOption) (bigtable.Row, error) {
	o, err := newReadOptions(opts)
	if err != nil {
		return nil, err
	}
	if err := format.CheckRowKey(row); err != nil {
		return nil, err
	}
	if err := v.promote([]string{row}, o.sel); err != nil {
		return nil, err
	}
	if len(o.sel.Columns) > 0 && len(o.sel.Ranges) == 0 && o.sel.First == 0 && !o.sel.KeysOnly {
		if v.txn.mayQueue(ctx) {
			return v.readColumnsInTurn(ctx, row, o.sel)
		}
		return v.readColumns(ctx, row, o.sel, nil)
	}
	return v.readRow(ctx, row, o)
}

func (v *View) readRow(ctx context.Context, row string, o readOptions) (bigtable.Row, error) {
	if err := v.txn.pin(ctx); err != nil {
		return nil, err
	}
	t, err := v.open(ctx, o.sel)
	if err != nil {
		return nil, err
	}
	var own *buffer.Overlay
	if v.txn != nil {
		own = v.txn.buffer.OverlayRow(v.name, row, o.sel)
	}
	ctx, span := v.traced(ctx)
	r, err := recovery.ReadVisible(ctx, v.client.resolver, t, row, own.Widen(o.sel), v.at())
	err = v.client.resolver.SafePoint.AfterRead(ctx, v.at(), err)
	span.EndWith(err)
	if err != nil {
		return nil, err
	}
	if v.txn == nil {
		return r, nil
	}
	v.txn.noteExpiry(t, r)
	if own == nil {
		return r, nil
	}
	return store.FirstCells(own.Apply(row, r), o.sel.First), nil
}

// ReadRows reads the rows of rs that have a visible cell in the chosen columns, in ascending
// order of their keys, each once. rs is a bigtable.RowList, a RowRange
// (bigtable.PrefixRange makes one from a prefix) or a RowRangeList; nil is the whole table.
// A row list is read in one request, as far as Bigtable's limits allow; other rows arrive
// while the loop runs. In a transaction, the scan sees the writes that were buffered when
// the iteration began.
//
// If garbage collection passes the timestamp, the read fails with ErrTooOld, also in the
// middle of an iteration. An error comes with a nil row and ends the iteration. Breaking
// out of the loop ends the read.
func (v *View) ReadRows(ctx context.Context, rs bigtable.RowSet, opts ...ReadOption) iter.Seq2[bigtable.Row, error] {
	return func(yield func(bigtable.Row, error) bool) {
		if err := v.readRows(ctx, rs, opts, yield); err != nil {
			yield(nil, err)
		}
	}
}

func (v *View) readRows(ctx context.Context, rs bigtable.RowSet, opts []ReadOption, yield func(bigtable.Row, error) bool) error {
	o, err := newReadOptions(opts)
	if err != nil {
		return err
	}
	set, err := store.NewRowSet(rs)
	if err != nil {
		return err
	}
	if err := v.promote(set.Keys, o.sel); err != nil {
		return err
	}
	if err := v.txn.pin(ctx); err != nil {
		return err
	}
	t, err := v.open(ctx, o.sel)
	if err != nil {
		return err
	}
	s := &scan{view: v, table: t, options: o, yield: yield, rest: set}
	if v.txn != nil {
		s.overlay = v.txn.buffer.Overlay(v.name, set.Contains, o.sel)
	}
	s.sel = s.overlay.Widen(o.sel)
	ctx, span := v.traced(ctx)
	err = s.run(ctx)
	span.Set(telemetry.AttrRows.Int(s.yielded))
	span.EndWith(err)
	return err
}

// promote buffers lock-only writes for the point reads of a serializable transaction. keys
// is nil if the read is not of a list of rows.
func (v *View) promote(keys []string, sel store.Selection) error {
	if v.txn == nil || !v.txn.opts.serializable {
		return nil
	}
	if keys == nil || len(sel.Ranges) > 0 || len(sel.Columns) == 0 {
		return fmt.Errorf("txn: table %q: %w: a row or column that does not exist yet cannot be locked; name rows and columns (Get, or a RowList with txn.Columns), or read from a Client.Snapshot", v.name, ErrSerializableScan)
	}
	for _, key := range keys {
		for _, c := range sel.Columns {
			v.txn.buffer.Promote(Cell{Table: v.name, Row: key, Family: c.Family, Qualifier: c.Qualifier})
		}
	}
	return nil
}

// traced begins the span of a read.
func (v *View) traced(ctx context.Context) (context.Context, telemetry.Span) {
	if v.txn != nil {
		return v.client.resolver.Trace.Begin(v.txn.withTrace(ctx), "read", v.name)
	}
	return v.client.resolver.Trace.Read(ctx, v.name, v.at())
}

// open returns the table, if the transaction may still read and the table has the families of
// sel.
func (v *View) open(ctx context.Context, sel store.Selection) (*store.Table, error) {
	if v.txn != nil {
		if err := v.txn.checkReadable(); err != nil {
			return nil, err
		}
	}
	t, err := v.client.resolver.Table(ctx, v.name)
	if err == nil {
		err = t.Schema.CheckRead(ctx, sel)
	}
	return t, err
}

// readCell reads one cell for Get, from the cache or in one request with the columns that the
// transaction is likely to ask for next.
func (v *View) readCell(ctx context.Context, cell Cell) (value []byte, present bool, err error) {
	if value, present, known := v.reads.cached(cell); known {
		return value, present, nil
	}
	sel := store.Selection{Columns: []Column{cell.Column()}}
	var ahead []Column
	for _, c := range v.reads.beginRead(cell) {
		if v.txn == nil || !v.txn.buffer.Wrote(Cell{Table: cell.Table, Row: cell.Row, Family: c.Family, Qualifier: c.Qualifier}) {
			ahead = append(ahead, c)
		}
	}
	row, err := v.readColumns(ctx, cell.Row, sel, ahead)
	if err != nil && len(ahead) > 0 && ctx.Err() == nil && store.Refused(err) {
		// The prefetched columns may have caused it: their family may be gone, or
		// their values too large for an answer.
		v.reads.forgetPattern(cell)
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
	v.reads.endRead(cell, len(value))
	return value, present, nil
}

// readColumns reads the columns of sel in a row, and prefetches the columns ahead into the
// cache.
func (v *View) readColumns(ctx context.Context, key string, sel store.Selection, ahead []Column) (bigtable.Row, error) {
	t, err := v.open(ctx, sel)
	if err != nil {
		return nil, err
	}
	ctx, span := v.traced(ctx)
	wide := store.Selection{Columns: append(sel.Columns[:len(sel.Columns):len(sel.Columns)], ahead...)}
	row, raw, err := recovery.ReadResolved(ctx, v.client.resolver, t, key, sel, t.VisibleAt(wide, v.at()), v.at(), v.reads.batchedRead(t, wide, v.at()))
	err = v.client.resolver.SafePoint.AfterRead(ctx, v.at(), err)
	span.EndWith(err)
	if err != nil {
		return nil, err
	}
	if len(ahead) > 0 {
		v.reads.cachePrefetched(ctx, t, key, raw, ahead, v.at())
	}
	if v.txn == nil {
		return row, nil
	}
	v.txn.noteExpiry(t, row)
	v.txn.noteExpiry(t, raw) // with what was prefetched
	return v.txn.overlayRow(v.name, key, sel, row), nil
}
