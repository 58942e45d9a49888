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

// The errors that carry facts. Package format describes them.
type (
	// A ConflictError names the cell on which a transaction failed, and the
	// transaction that it conflicted with. See [format.ConflictError] for its fields.
	ConflictError = format.ConflictError
	// An UndeterminedError says that a commit was sent and that its outcome is
	// unknown. [Client.Settle] finds it out. See [format.UndeterminedError] for its
	// fields.
	UndeterminedError = format.UndeterminedError
	// A TooOldError says that garbage collection has passed a timestamp. See
	// [format.TooOldError] for its fields.
	TooOldError = format.TooOldError
)

// Retryable reports whether running the transaction again from the start, with a new
// start timestamp, may succeed.
func Retryable(err error) bool { return format.Retryable(err) }
