package txn

import (
	"context"
	"slices"
	"strings"

	"github.com/percolator-bigtable/percolator/tso"
)

// notifications are the transaction's weak notifications, checked.
func (t *Txn) notifications(ctx context.Context) ([]Cell, error) {
	var cells []Cell
	for cell := range t.buffer.notify {
		if err := checkNotifiable(ctx, t.client.store, cell, true); err != nil {
			return nil, err
		}
		cells = append(cells, cell)
	}
	slices.SortFunc(cells, func(a, b Cell) int { return strings.Compare(a.String(), b.String()) })
	return cells, nil
}

// onlyNotify ends a transaction that writes nothing: its weak notifications are
// set at a timestamp of their own, so that whatever was committed before is
// seen by the observers.
func (t *Txn) onlyNotify(ctx context.Context, cells []Cell) (tso.Timestamp, error) {
	if len(cells) == 0 {
		return t.startTS, nil
	}
	ts, err := t.client.Timestamp(ctx)
	if err != nil {
		return 0, err
	}
	if err := writeNotifications(ctx, t.client.store, cells, ts, encodeTrigger(traceParent(ctx), t.hops)); err != nil {
		return 0, err
	}
	t.client.hints.hint(cells...)
	return ts, nil
}
