package txn

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
)

// WatchNotifications has f called with each cell that this client has notified,
// once its notify cell is there: by a commit, by rolling another client's commit
// forward, or by Notify. f reports whether it takes care of the cell, and has to
// return at once. Call stop to end it; f may still be running then.
func WatchNotifications(client *Client, f func(Cell) (taken bool)) (stop func()) {
	c := resolverOf(client)
	return c.hints.watch(f)
}

// SubscribeNotifications has f called with cells of the columns that other
// processes have notified and hinted, until ctx ends. Each hint comes to one of
// all subscribers, so f should take care of it. Where the oracle carries no
// hints it returns nil at once.
func SubscribeNotifications(ctx context.Context, client *Client, columns []ObservedColumn, f func(Cell)) error {
	c := resolverOf(client)
	byTable := map[string][]Column{}
	for _, col := range columns {
		byTable[col.Table] = append(byTable[col.Table], col.Column)
	}
	return c.hints.subscribe(ctx, byTable, f)
}

// OracleNow estimates the oracle's time from the last timestamp that this client
// was given, without asking for one. It is for deciding when to look at
// something again, and never for what has to be right. 0: none was given yet.
func OracleNow(client *Client) tso.Timestamp {
	c := resolverOf(client)
	return c.clock.now()
}

// OnResolve has f called after each cell that this client rolls forward or back on
// behalf of another transaction. f has to return quickly and may be called
// concurrently. nil ends it.
func OnResolve(client *Client, f func(Resolution)) {
	c := resolverOf(client)
	if f == nil {
		c.onResolve.Store(nil)
		return
	}
	c.onResolve.Store(&f)
}
