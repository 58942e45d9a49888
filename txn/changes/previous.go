package changes

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// Previous returns the value that the cell of an observation had when the observer's last
// acknowledged run began, which is the value that this run saw. ok is false if the cell was absent,
// or if no run has been acknowledged. It takes one read.
//
// It may fail with ErrTooOld if garbage collection has passed that run: not if the cell has
// changed only once since then, however long ago the run was, but if an older change is below the
// safe point too. A value that has expired meanwhile counts as absent.
func Previous(ctx context.Context, tx *txn.Txn, o *Observation, observer string) (value []byte, ok bool, err error) {
	if o.Weak {
		return nil, false, format.Invalidf("the previous value of %s, which is for weak notifications and has none", o.Cell)
	}
	ack := o.Acks[observer]
	if ack == 0 {
		return nil, false, nil
	}
	t := access.TransactionOf(tx)
	if err := t.CheckReadable(); err != nil {
		return nil, false, err
	}
	r := t.Resolver()
	tbl, err := r.Table(ctx, o.Cell.Table)
	if err != nil {
		return nil, false, err
	}
	ctx, end := t.Observing(ctx, o.Cell.Table)
	value, ok, err = previous(ctx, r, tbl, o.Cell, ack, t.StartTS())
	if err = end(err); err != nil {
		return nil, false, err
	}
	return value, ok, nil
}

// previous reads a cell as of ack. Below the safe point nothing can be read. But garbage collection
// keeps the newest version at or below the safe point. If that one is not above ack, the cell did
// not change in between. It may remove values that have expired, so whether a value has expired is
// decided at startTS.
func previous(ctx context.Context, r *recovery.Resolver, t *store.Table, cell format.Cell, ack, startTS tso.Timestamp) (value []byte, ok bool, err error) {
	sel := store.Selection{Columns: []format.Column{cell.Column()}}
	for {
		safe, err := r.SafePoint.Current(ctx)
		if err != nil {
			return nil, false, err
		}
		at := max(ack, safe)
		row, raw, err := recovery.ReadResolved(ctx, r, t, cell.Row, sel, t.VisibleAt(sel, at), at, nil)
		if newer, e := r.SafePoint.Current(ctx); e != nil {
			return nil, false, e
		} else if newer > at {
			continue // a garbage collection began meanwhile
		}
		if err != nil {
			return nil, false, err
		}
		key := cell.Column().Key()
		item, ok := store.FindColumn(row[cell.Family], key)
		changed := tso.Timestamp(item.Timestamp)
		w, found := store.FindColumn(raw[format.WriteFamily], format.WriteFamily+":"+key)
		if found {
			changed = tso.FromCell(w.Timestamp)
		}
		switch {
		case t.Schema.Expiries().Expired(cell.Family, changed, startTS):
			return nil, false, nil // what it replaced is older
		case found && changed > ack:
			return nil, false, &format.TooOldError{TS: ack, SafePoint: safe}
		}
		return item.Value, ok, nil
	}
}
