// Package txn runs ACID transactions with snapshot isolation across rows and
// tables of any Bigtable-compatible service, as a library over a
// *bigtable.Client that the service already has. It is the transaction half of
// Percolator (Peng & Dabek, "Large-scale Incremental Processing Using
// Distributed Transactions and Notifications", OSDI 2010).
//
// # A transaction
//
//	client, err := txn.NewClient(ctx, bt, txn.Config{})
//	…
//	commitTS, err := client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
//		accounts := tx.Table("accounts")
//		bob, _, err := accounts.Get(ctx, "bob", "bal", "usd")
//		if err != nil {
//			return err
//		}
//		accounts.Set("bob", "bal", "usd", minus(bob, 7))
//		tx.Table("journal").Set(id, "entry", "text", []byte("bob pays 7"))
//		return nil
//	})
//
// [Client.Update] runs the function again after a conflict, so it must be
// repeatable. [Client.Begin], [Txn.Commit] and [Txn.Rollback] do the same by
// hand. [Client.Snapshot] reads a consistent state, now or in the past, without
// a transaction.
//
// # What is promised
//
// A transaction reads the state as of its start timestamp, and its own writes.
// It commits only if no other transaction wrote one of its cells since then.
// Its writes become visible all at once, at its commit timestamp. Write skew is
// possible, as always under snapshot isolation; [Table.Lock],
// [Table.GetForUpdate] and [Serializable] rule it out. docs/guarantees.md has
// the whole list.
//
// # Tables
//
// A cell is (table, row, family, qualifier), as Bigtable names it, and its value
// stays where Bigtable keeps it. Beside the user's families a transactional
// table has five of ours: [LockFamily], [WriteFamily], [MarkFamily],
// [NotifyFamily] and [AckFamily]; docs/storage-format.md describes them. No
// family may have a garbage-collection policy. [InitTable] creates a table, or
// makes an existing one transactional without rewriting a byte.
//
// # Errors
//
// [ErrConflict] means that the transaction did not happen and may be tried
// again. [ErrUndetermined] means that nobody could know, mostly because the context
// ended: [Client.Settle] finds the outcome out. Every other error from Commit but
// [ErrCorrupt], which says what it is, means that the transaction did not happen.
// Where a context ended,
// errors.Is with context.Canceled or context.DeadlineExceeded holds.
//
// # When clients die
//
// A client that dies leaves locks. Whoever meets one, reader or writer, looks
// at the transaction's primary lock, which decides: committed transactions are
// rolled forward, dead ones back. [Client.Locks], [Client.Status] and
// [Client.Resolve] show and do the same on request, and [Client.Check] verifies
// the stored state. docs/protocol.md has the state diagrams.
//
// # Garbage collection
//
// Versions are kept for a retention, after which [Client.RunGC] (or percctl gc
// run) may remove those that newer ones hide. Reads and commits of that age fail
// with [ErrTooOld]. An open transaction holds collection back, and so does a
// snapshot taken with [Hold]. docs/gc.md has the rest.
//
// # Round trips
//
// A read is one request and a question to the oracle, a write of one row two
// conditional mutations and two questions. Transactions read along what those of
// their name ([Named]) have read together, see Config.PrefetchBytes. Snapshots
// that may be a little old need not ask the oracle ([MaxStaleness]), nor do
// transactions that read nothing wait for it ([WriteOnly]). Reads from many
// goroutines of a transaction may share requests, see Config.BatchReads; a list of
// rows in one [View.ReadRows] always does.
//
// Tests of code that uses this package start with package txntest.
package txn
