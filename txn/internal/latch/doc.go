// Package latch keeps transactions of one client out of each other's way before they send
// requests. Latches let transactions that write the same cells take turns. Recent predicts
// conflicts with commits that the client knows of.
//
// All of it is for speed alone. The protocol does not rely on it: a transaction that waits
// too long continues without latches, and other clients do not see them.
//
// Package txn uses it. It imports format and store.
package latch
