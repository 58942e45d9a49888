package changes

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// WatchNotifications calls f with each cell that this client has notified, once
// its notify cell is stored: after a commit, after it rolled another client's
// commit forward, and after Notify. f says whether it handles the cell; otherwise
// the cell is hinted to other processes. f must return at once. Call stop to end
// it; f may still be running then.
func WatchNotifications(client *txn.Client, f func(format.Cell) (handled bool)) (stop func()) {
	c := access.ResolverOf(client)
	return c.Hints.Watch(f)
}

// SubscribeHints calls f with cells of the columns that other processes have
// notified and hinted, until ctx ends. Each hint reaches one of all subscribers, so
// f should handle it. Hints may be lost. If the oracle carries no hints,
// SubscribeHints returns nil at once.
func SubscribeHints(ctx context.Context, client *txn.Client, columns []ObservedColumn, f func(format.Cell)) error {
	c := access.ResolverOf(client)
	byTable := map[string][]format.Column{}
	for _, col := range columns {
		byTable[col.Table] = append(byTable[col.Table], col.Column)
	}
	return c.Hints.Subscribe(ctx, byTable, f)
}
