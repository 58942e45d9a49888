package txn

import (
	"context"
	"fmt"
	"iter"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A View reads one table at one timestamp; in a transaction, with the
// transaction's own writes laid over. Reads of locked cells wait while the
// lock's owner is alive, and settle what dead owners left.
//
// Rows come back as Bigtable's own: families with their cells in order of the
// columns, one cell a column. ReadItem.Timestamp is the commit timestamp, in
// microseconds since the epoch, of the transaction that wrote the value; for
// data from before the table was adopted, the cell's own timestamp; and 0 for
// the transaction's own writes.
type View struct {
	client *Client
	name   string
	ts     tso.Timestamp
	txn    *Txn   // nil in a snapshot
	reads  *reads // nil: nothing is shared between reads
}

// Get reads one cell. ok is false when the cell is absent; a value that is
// present may be empty, and is never nil. The slice is the caller's.
func (v *View) Get(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error) {
	cell := Cell{Table: v.name, Row: row, Family: family, Qualifier: qualifier}
	if err := format.CheckCell(cell); err != nil {
		return nil, false, err
	}
	if v.txn != nil {
		if err := v.txn.alive(); err != nil {
			return nil, false, err
		}
		if kind, value, ok := v.txn.buffer.get(cell); ok {
			return value, kind == KindPut, nil
		}
	}
	if value, ok, err = v.readCell(ctx, cell); err != nil {
		return nil, false, err
	}
	if v.txn != nil && v.txn.opts.serializable {
		v.txn.buffer.promote(cell)
	}
	return value, ok, nil
}

// ReadRow reads a row, or the columns of it that the options choose. A row
// without visible cells is nil.
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
	if len(o.sel.Families) == 0 && len(o.sel.Columns) > 0 {
		return v.readColumns(ctx, row, o.sel, nil)
	}
	return v.readRow(ctx, row, o)
}

func (v *View) readRow(ctx context.Context, row string, o readOptions) (bigtable.Row, error) {
	t, err := v.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, span := v.traced(ctx)
	r, err := recovery.VisibleRow(ctx, v.client.Resolver, t, row, o.sel, v.ts)
	err = v.client.SafePoint.AfterRead(ctx, v.ts, err)
	span.EndWith(err)
	if err != nil || v.txn == nil {
		return r, err
	}
	return v.txn.overlayRow(v.name, row, o.sel, r), nil
}

// ReadRows reads the rows of rs that have a visible cell in the chosen
// columns, in ascending order of their keys, each once: a bigtable.RowList,
// RowRange (bigtable.PrefixRange makes one from a prefix) or RowRangeList; nil
// is the whole table. A row list is read in one request, as far as Bigtable's
// limits allow; other rows arrive while the loop runs. In a transaction, the scan sees the
// writes that were buffered when the iteration began.
//
// A read at a timestamp that garbage collection has passed fails with ErrTooOld,
// also in the middle of an iteration.
//
// After an error, which comes with a nil row, the iteration is over. Breaking
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
	t, err := v.open(ctx)
	if err != nil {
		return err
	}
	s := &scan{view: v, table: t, options: o, yield: yield, rest: set}
	if v.txn != nil {
		s.overlay = v.txn.buffer.overlay(v.name, set.Contains, o.sel)
	}
	ctx, span := v.traced(ctx)
	err = s.run(ctx)
	span.Set(store.AttrRows.Int(s.given))
	span.EndWith(err)
	return err
}

// promote turns the point reads of a serializable transaction into lock-only
// writes. keys is nil for anything but a list of rows.
func (v *View) promote(keys []string, sel store.Selection) error {
	if v.txn == nil || !v.txn.opts.serializable {
		return nil
	}
	if keys == nil || len(sel.Families) > 0 || len(sel.Columns) == 0 {
		return fmt.Errorf("txn: table %q: %w: a row or column that does not exist yet cannot be locked; name rows and columns (Get, or a RowList with txn.Columns), or read from a Client.Snapshot", v.name, ErrSerializableScan)
	}
	for _, key := range keys {
		for _, c := range sel.Columns {
			v.txn.buffer.promote(Cell{Table: v.name, Row: key, Family: c.Family, Qualifier: c.Qualifier})
		}
	}
	return nil
}

// traced begins the span of a read.
func (v *View) traced(ctx context.Context) (context.Context, store.Span) {
	if v.txn != nil {
		return v.client.Trace.Begin(v.txn.within(ctx), "read", v.name)
	}
	return v.client.Trace.Read(ctx, v.name, v.ts)
}

func (v *View) open(ctx context.Context) (*store.Table, error) {
	if v.txn != nil {
		if err := v.txn.alive(); err != nil {
			return nil, err
		}
	}
	return v.client.Table(ctx, v.name)
}
