package txn

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Latest reads one row at a time, each at its own present: two reads, also of two columns of
// one row, may show states that never existed together. For a consistent state of several rows
// or several reads, use [Client.Snapshot].
//
// A read takes one round trip, because it does not ask the oracle. It shows every transaction
// that committed before the call, and nothing that is not committed: each cell is
// linearizable. One read of several columns shows the row as of one timestamp. Later snapshots
// and transactions of the client, also those with [MaxStaleness], show this state or a later
// one.
//
// A read does not wait for live transactions, unless it reads several columns, and one of them
// is locked by a transaction that began before another column's newest commit. It resolves the
// locks of dead and committed transactions. Its methods may be called concurrently.
type Latest struct{ view View }

// Get reads one cell, as [View.Get] does. It never fails with ErrTooOld.
func (l *Latest) Get(ctx context.Context, row, family, qualifier string) (value []byte, ok bool, err error) {
	cell := Cell{Table: l.view.name, Row: row, Family: family, Qualifier: qualifier}
	if err := format.CheckCell(cell); err != nil {
		return nil, false, err
	}
	r, err := l.read(ctx, row, store.Selection{Columns: []Column{cell.Column()}})
	items := r[family]
	if err != nil || len(items) == 0 {
		return nil, false, err
	}
	if value = items[0].Value; value == nil {
		value = []byte{}
	}
	return value, true, nil
}

// ReadRow reads a row, or the columns of it that the options choose, as [View.ReadRow] does.
func (l *Latest) ReadRow(ctx context.Context, row string, opts ...ReadOption) (bigtable.Row, error) {
	o, err := newReadOptions(opts)
	if err != nil {
		return nil, err
	}
	if err := format.CheckRowKey(row); err != nil {
		return nil, err
	}
	return l.read(ctx, row, o.sel)
}

func (l *Latest) read(ctx context.Context, row string, sel store.Selection) (bigtable.Row, error) {
	resolver := l.view.client.resolver
	if err := resolver.CheckOpen(); err != nil {
		return nil, err
	}
	t, err := l.view.open(ctx, sel)
	if err != nil {
		return nil, err
	}
	resolver.Counters.Latest.Add(1)
	ctx, span := l.view.traced(ctx)
	r, err := recovery.ReadLatest(ctx, resolver, t, row, sel)
	span.EndWith(err)
	return r, err
}
