package txn

import (
	"context"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

func init() {
	access.ResolverOf = func(client any) *recovery.Resolver { return client.(*Client).resolver }
	access.TransactionOf = func(tx any) access.Transaction { return inside{tx.(*Txn)} }
	access.TraceLater = func(begin func(context.Context) context.Context) any {
		return TxnOption(txnOption(func(o *txnOptions) { o.traceLater = begin }))
	}
}

// inside gives the packages gc, admin and changes what they need of a transaction. Package
// access describes the methods.
type inside struct{ t *Txn }

func (i inside) Resolver() *recovery.Resolver { return i.t.client.resolver }

func (i inside) StartTS() tso.Timestamp { return i.t.startTS }

func (i inside) Alive() error { return i.t.checkReadable() }

func (i inside) Observing(ctx context.Context, table string) (context.Context, func(error) error) {
	t := i.t
	ctx, span := t.client.resolver.Trace.Begin(t.withTrace(ctx), "read", table)
	ctx = t.deferred.readBegins(ctx, table)
	return ctx, func(err error) error {
		err = t.client.resolver.SafePoint.AfterRead(ctx, t.startTS, err)
		span.EndWith(err)
		t.deferred.readEnds(err)
		return err
	}
}

func (i inside) Remember(cell Cell, value []byte, present bool) {
	i.t.reads.remember(cell, value, present)
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

func (i inside) Trace(ctx context.Context) context.Context {
	if i.t.deferred == nil {
		return ctx
	}
	i.t.deferred.beginNow(ctx)
	return trace.ContextWithSpan(ctx, i.t.deferred.parent)
}
