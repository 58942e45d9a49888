// Package settled knows which transactions of a client have no lock left, so that garbage
// collection may remove their write records without a search for locks
// (docs/design/collection.md). Packages store, recovery, txn and gc use it. It
// imports nothing of the module but tso and format.
package settled
