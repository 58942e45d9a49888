package txn

import "github.com/percolator-bigtable/percolator/txn/format"

// Errors to match with errors.Is. The typed errors below carry the facts.
var (
	// ErrConflict: another transaction wrote or holds a cell that this one writes, or
	// rolled this one back. Nothing of this transaction was or will be visible.
	// Running it again from the start may succeed.
	ErrConflict = format.ErrConflict
	// ErrUndetermined: the client could not find out the outcome of a commit. See
	// [UndeterminedError].
	ErrUndetermined = format.ErrUndetermined
	// ErrDone: the transaction has already been committed or rolled back.
	ErrDone = format.ErrDone
	// ErrClosed: the client is closed.
	ErrClosed = format.ErrClosed
	// ErrNotInitialized: the metadata table or the schema record of a table is
	// missing.
	ErrNotInitialized = format.ErrNotInitialized
	// ErrSchema: a table's families or garbage-collection policies are wrong, or a
	// read or write names a family that the table does not have.
	ErrSchema = format.ErrSchema
	// ErrFormatVersion: stored data has a later format than this library knows.
	ErrFormatVersion = format.ErrFormatVersion
	// ErrTooOld: garbage collection has passed the timestamp of a read or
	// transaction. See [TooOldError].
	ErrTooOld = format.ErrTooOld
	// ErrCorrupt: stored records contradict the protocol. Nothing was changed.
	ErrCorrupt = format.ErrCorrupt
	// ErrInvalid: an argument is wrong. Nothing was sent.
	ErrInvalid = format.ErrInvalid
	// ErrLimit: a write exceeds one of Bigtable's limits. Nothing was sent.
	ErrLimit = format.ErrLimit
	// ErrSerializableScan: a serializable transaction asked for a read that cannot be
	// protected against phantoms.
	ErrSerializableScan = format.ErrSerializableScan
)

// The errors that carry facts.
type (
	// A ConflictError says on what a transaction failed:
	//
	//	Cell       Cell           // on which it failed
	//	StartTS    tso.Timestamp  // of the transaction that failed
	//	ConflictTS tso.Timestamp  // of the other one; Reason says which of its timestamps
	//	Reason     format.ConflictReason
	//
	// errors.Is(err, ErrConflict) holds.
	ConflictError = format.ConflictError
	// An UndeterminedError says that a commit was sent and that its outcome is unknown:
	//
	//	Primary  Cell           // whose state decides
	//	StartTS  tso.Timestamp
	//	CommitTS tso.Timestamp  // at which the commit was sent
	//	Err      error          // which ended the attempts to find out
	//
	// [Client.Settle] finds it out. errors.Is(err, ErrUndetermined) holds.
	UndeterminedError = format.UndeterminedError
	// A TooOldError says that garbage collection has passed a timestamp:
	//
	//	TS        tso.Timestamp  // of the read, or the transaction's start_ts
	//	SafePoint tso.Timestamp  // that the client read
	//	Write     bool           // the transaction wanted to write, and needs TS > SafePoint
	//
	// errors.Is(err, ErrTooOld) holds.
	TooOldError = format.TooOldError
)

// Retryable reports whether running the transaction again from the start, with a new
// start timestamp, may succeed.
func Retryable(err error) bool { return format.Retryable(err) }
