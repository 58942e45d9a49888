// Package txn runs ACID transactions with snapshot isolation across rows and
// tables of any Bigtable-compatible service. It is a library over the
// *bigtable.Client that a service already has, and the transaction half of
// Percolator (Peng & Dabek, "Large-scale Incremental Processing Using Distributed
// Transactions and Notifications", OSDI 2010). Package notify is the other half.
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
// [Client.Update] runs the function again after a conflict, so the function must be
// safe to repeat. [Client.Begin], [Txn.Commit] and [Txn.Rollback] do the same by
// hand. [Client.Snapshot] reads a consistent state, now or in the past, without a
// transaction. Code that only reads can take a [Reader], which both provide.
//
// # What is promised
//
// A transaction reads the state as of its start timestamp, and its own writes. It
// commits only if no other transaction wrote one of the cells that it writes since then. Its
// writes become visible all at once, at its commit timestamp. As always under snapshot
// isolation, write skew is possible: two transactions each write what the other only reads.
// [Table.Lock], [Table.GetForUpdate] and [Serializable] prevent it. docs/guarantees.md has the
// whole list.
//
// # Tables
//
// A cell is (table, row, family, qualifier), as Bigtable names it, and its value stays
// where Bigtable keeps it. Beside the user's families, a transactional table has five
// metadata families; docs/storage-format.md describes them. No family may have a
// garbage-collection policy. admin.InitTable creates a table, or makes an existing one
// transactional without rewriting data.
//
// # Errors
//
// [ErrConflict] means that nothing was committed and that the transaction may be tried again,
// which [Client.Update] does. [ErrUndetermined] means that the outcome is unknown, mostly
// because the context ended: [Client.Settle] finds it out, and with [SettleWithin] Commit and
// Update find it out themselves. Every other error of Commit except
// [ErrCorrupt] and [ErrDone] means that nothing was committed. If a context ended,
// errors.Is with context.Canceled or context.DeadlineExceeded holds.
//
// # When clients die
//
// A client that dies leaves locks. A reader or writer that finds one reads the
// transaction's primary lock, which decides: the reader rolls a committed transaction
// forward and a dead one back. Package admin lists and resolves locks on request, and
// checks the stored state.
//
// # Garbage collection
//
// The deployment keeps versions for its retention. After that, gc.Run (or percctl gc run) may
// remove the versions that newer ones hide. Older reads and commits then fail with
// [ErrTooOld]. An open transaction holds garbage collection back, and so does a
// snapshot taken with [Hold]. See docs/gc.md.
//
// # Round trips
//
// A transaction asks the timestamp oracle for a start timestamp, and for a commit timestamp
// if it writes. Each read is one request to Bigtable. A write of one row is two conditional
// mutations. A transaction with a name prefetches the columns that transactions of that
// name usually read ([Named]). A snapshot that may be a little old need not ask the oracle
// ([MaxStaleness]), and a read of one row at its present does not ask at all
// ([Client.Latest]).
// Reads from many goroutines of one transaction can share requests (Config.BatchReads); a
// list of rows in one [View.ReadRows] always does.
//
// Tests of code that uses this package start with package txntest.
package txn
