package txn

import (
	"context"
	"slices"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

func init() {
	access.ResolverOf = func(client any) *recovery.Resolver { return client.(*Client).resolver }
	access.TransactionOf = func(tx any) access.Transaction { return inside{tx.(*Txn)} }
	access.Keep = func(client any, place string) {
		client.(*Client).register(func(h *hooks) { h.keeps = append(slices.Clone(h.keeps), place) })
	}
}

// inside gives the packages gc, admin and changes what they need of a transaction. Package
// access describes the methods.
type inside struct{ t *Txn }

func (i inside) Resolver() *recovery.Resolver { return i.t.client.resolver }

func (i inside) StartTS() tso.Timestamp { return i.t.StartTS() }

func (i inside) CheckReadable() error { return i.t.checkReadable() }

func (i inside) Observing(ctx context.Context, table string) (context.Context, func(error) error) {
	t := i.t
	_ = t.pin(ctx) // if it fails, so does the read: ctx has ended
	ctx, span := t.client.resolver.Trace.Begin(t.withTrace(ctx), "read", table)
	return ctx, func(err error) error {
		err = t.client.resolver.SafePoint.AfterRead(ctx, t.startTS, err)
		span.EndWith(err)
		return err
	}
}

func (i inside) Remember(table *store.Table, row bigtable.Row, cell Cell) {
	i.t.noteExpiry(table, row)
	item, present := store.FindColumn(row[cell.Family], cell.Column().Key())
	i.t.reads.remember(cell, item.Value, present)
}

func (i inside) CausedBy(hops int) {
	i.t.mu.Lock()
	defer i.t.mu.Unlock()
	i.t.hops = max(i.t.hops, hops)
}

func (i inside) Put(cell Cell, value []byte) {
	i.t.buffer.Add(cell, format.CheckStoredCell(cell), format.KindPut, value, false)
}

func (i inside) CheckWrites(ctx context.Context) error {
	b := &i.t.buffer
	if !b.IsOpen() { // there is no write, or an invalid one
		return b.Err()
	}
	_, err := b.Group(ctx, i.t.client.resolver.Store, i.t.client.hooks.Load().keeps)
	return err
}
