package changes

import (
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// WatchNotifications calls f with each cell that this client has notified, once
// its notify cell is stored: after a commit, after it rolled another client's
// commit forward, and after Notify. f says whether it handles the cell; otherwise
// other watchers of this client get it. f must return at once. Call stop to end
// it; f may still be running then. Other processes find the cell in the journal.
func WatchNotifications(client *txn.Client, f func(format.Cell) (handled bool)) (stop func()) {
	c := access.ResolverOf(client)
	return c.Hints.Watch(f)
}
