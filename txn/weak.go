package txn

import (
	"context"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// weakNotifications checks the transaction's weak notifications and returns their cells,
// sorted.
func weakNotifications(ctx context.Context, t *Txn) ([]Cell, error) {
	var cells []Cell
	for cell := range t.buffer.notify {
		if err := store.CheckNotifiable(ctx, t.client.resolver.Store, cell, true); err != nil {
			return nil, err
		}
		cells = append(cells, cell)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return strings.Compare(a.String(), b.String()) })
	return cells, nil
}

// notifyWithoutCommit ends a transaction that writes nothing: its weak notifications are
// set at a timestamp of their own, so that the observers see everything that was
// committed before.
func notifyWithoutCommit(ctx context.Context, t *Txn, cells []Cell) (tso.Timestamp, error) {
	if len(cells) == 0 {
		return t.startTS, nil
	}
	ts, err := t.client.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	if err := store.WriteNotifications(ctx, t.client.resolver.Store, cells, ts, format.EncodeNotifyCell(format.TraceParent(ctx), t.hops)); err != nil {
		return 0, err
	}
	t.client.resolver.Hints.Publish(cells...)
	return ts, nil
}
