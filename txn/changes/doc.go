// Package changes is what package notify is built on: which columns are
// observed, which cells changed, and which observers have acknowledged what.
//
// Applications use package notify, which runs observers, retries and parks. They
// do not need this package. It is for notify itself, for percctl, and for
// programs that run observers in another way.
//
// # One observer, by hand
//
//	err := changes.RegisterObserver(ctx, client, "docs", column, "indexer", false)
//	…
//	for n, err := range changes.Notifications(ctx, client, "docs", nil) {
//		…
//		_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
//			seen, err := changes.Observe(ctx, tx, n.Cell)
//			if err != nil || !seen.Pending("indexer") {
//				return err
//			}
//			… // read the cell, write what follows from it
//			changes.Acknowledge(tx, seen, "indexer")
//			return nil
//		})
//	}
//
// [RegisterObserver] makes every commit of a column leave a notification.
// [Observe] reads, in a transaction, whether an observer has acknowledged the
// newest change of a cell. [Acknowledge] lets at most one transaction commit for
// that change. [ClearNotifications] removes notifications when every observer has
// acknowledged. [Park], [Replay] and [Drop] are for changes on which an observer
// failed too often.
//
// # What it never does
//
// It runs no observer, decides no retry, and leaves no goroutine running after a
// call. A notification proves nothing: only an [Observation] says whether an
// observer has to run.
//
// docs/observers.md describes observers for applications, and
// docs/storage-format.md the stored cells.
package changes
