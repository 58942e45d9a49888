// Package recovery finds out the outcome of transactions, other clients' and our own after
// a lost answer, and completes or undoes what they left:
//
//   - a [Resolver] resolves the locks that reads and prewrites find (resolver.go), and reads
//     outcomes from primaries (status.go);
//   - the read rule decides which values a read returns, and which locks it must resolve
//     first (read.go); a read may pass a live lock (pass.go);
//   - a [PrimaryCommit] commits a primary, with a known outcome in the end (primary.go), and
//     [Settle] does so after a restart (settle.go);
//   - a [Token] is the client's sign of life (token.go), and [Holds] keep garbage collection
//     below open transactions (holds.go).
//
// Package txn uses it for every read and commit; gc, admin and changes reach it through
// package access. It imports store and the packages below.
package recovery
