// Package changed notes the rows that a client's commits change, so that garbage collection need
// not search for them (docs/design/collection.md). Package txn writes the
// notes, and gc reads and removes them. It imports store.
package changed
