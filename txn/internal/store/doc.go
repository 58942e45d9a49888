// Package store is a client's access to Bigtable. A [Store] makes the requests, each with a
// deadline, a span, a metric and an error that names the table. It also holds what all
// requests depend on:
//
//   - tables and their requests (table.go), schemas (schema.go);
//   - the filters that reads and conditional mutations use (filter.go), the mutations that
//     commit and remove cells (mutations.go), sets of rows (rowset.go, row.go);
//   - the safe point, below which nothing may be read (safepoint.go), and the oracle's clock
//     (clock.go);
//   - work that no caller waits for (background.go), hints about new notifications to workers of this process (hints.go);
//   - which errors are final and which are worth a retry (rpc.go), how long to wait
//     (backoff.go), how reads are tried again (retry.go), and how many commits and reads a
//     client has under way (admission.go).
//
// It knows how a transaction's cells are stored, but nothing about its outcome: that is
// package recovery. It imports format, telemetry and gctime. recovery, latch, txn and the
// packages above use it.
package store
