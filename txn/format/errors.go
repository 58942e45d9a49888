package format

import (
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// Errors to match with errors.Is. The typed errors of this file carry the details.
var (
	// ErrConflict: another transaction wrote or holds a cell that this one writes, or
	// rolled this one back. Nothing of this transaction was or will be visible. Running
	// it again from the start may succeed.
	ErrConflict = errors.New("transaction conflict")
	// ErrUndetermined: the client could not find out the outcome of a commit. See
	// [UndeterminedError].
	ErrUndetermined = errors.New("commit outcome undetermined")
	// ErrDone: the transaction has already been committed or rolled back.
	ErrDone = errors.New("transaction has ended")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("client is closed")
	// ErrNotInitialized: the metadata table or the schema record of a table is missing.
	ErrNotInitialized = errors.New("not initialized")
	// ErrSchema: a table's families or garbage-collection policies are wrong, or a read or
	// write names a family that the table does not have.
	ErrSchema = errors.New("schema mismatch")
	// ErrFormatVersion: stored data has a later format than this library knows.
	ErrFormatVersion = errors.New("unknown storage format version")
	// ErrTooOld: garbage collection has passed the timestamp of a read or transaction.
	// See [TooOldError].
	ErrTooOld = errors.New("too old")
	// ErrCorrupt: stored records contradict the protocol. The client changed nothing.
	ErrCorrupt = errors.New("corrupt transaction metadata")
	// ErrInvalid: an argument is wrong. The client sent nothing.
	ErrInvalid = errors.New("invalid argument")
	// ErrLimit: a write exceeds one of Bigtable's limits. The client sent nothing.
	ErrLimit = errors.New("bigtable limit exceeded")
	// ErrSerializableScan: a serializable transaction asked for a read that cannot be
	// protected against phantoms.
	ErrSerializableScan = errors.New("scan in a serializable transaction")
)

// A ConflictReason says what a transaction conflicted with.
type ConflictReason string

// The reasons of a [ConflictError].
const (
	// ConflictWrite: another transaction committed the cell at ConflictTS, after this
	// transaction's start. The commit may have been lock-only.
	ConflictWrite ConflictReason = "write"
	// ConflictLock: the cell is locked by the live transaction that started at
	// ConflictTS.
	ConflictLock ConflictReason = "lock"
	// ConflictMarker: the cell has the rollback marker of another transaction at
	// ConflictTS, after this transaction's start. A marker is no write, but the prewrite
	// cannot distinguish it from one. Markers are rare.
	ConflictMarker ConflictReason = "rollback marker"
	// ConflictRolledBack: another client found the owner of this transaction dead,
	// because a lock had expired or the worker token was stale, and rolled the
	// transaction back. ConflictTS is zero.
	ConflictRolledBack ConflictReason = "rolled back"
	// ConflictBound: the commit_ts was not below ConflictTS, the bound that the
	// transaction has set itself (CommitBefore).
	ConflictBound ConflictReason = "bound"
	// ConflictStalled: a row did not answer, mostly because its tablet moves, so the transaction
	// gave up its locks of other rows. ConflictTS is zero. The next Commit that writes the row waits
	// until it answers, before it locks anything.
	ConflictStalled ConflictReason = "stalled"
)

// A ConflictError names the cell on which a transaction failed, and the transaction that
// it conflicted with. errors.Is(err, ErrConflict) holds.
type ConflictError struct {
	// Cell is the cell on which the transaction failed.
	Cell Cell
	// StartTS is the start_ts of the transaction that failed.
	StartTS tso.Timestamp
	// ConflictTS is a timestamp of the other transaction. Reason says which one.
	ConflictTS tso.Timestamp
	Reason     ConflictReason
}

// Error names the cell and both timestamps.
func (e *ConflictError) Error() string {
	switch e.Reason {
	case ConflictRolledBack:
		return fmt.Sprintf("percolator: %v: another client rolled back the transaction that started at %d, because its lock on %s had expired or its worker token was stale", ErrConflict, e.StartTS, e.Cell)
	case ConflictBound:
		return fmt.Sprintf("percolator: %v: the transaction that started at %d had to commit before %d, and was too late", ErrConflict, e.StartTS, e.ConflictTS)
	case ConflictStalled:
		return fmt.Sprintf("percolator: %v: the transaction that started at %d gave up its locks, because the row of %s did not answer", ErrConflict, e.StartTS, e.Cell)
	case ConflictLock:
		return fmt.Sprintf("percolator: %v: %s is locked by the transaction that started at %d; this one started at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
	case ConflictMarker:
		return fmt.Sprintf("percolator: %v: %s has the rollback marker of the transaction that started at %d, after this one's start at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
	}
	return fmt.Sprintf("percolator: %v: %s was written at %d, after this transaction's start at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ErrorType returns the low-cardinality name of the error for telemetry.
func (e *ConflictError) ErrorType() string { return "conflict" }

// An UndeterminedError says that the client sent the commit of the primary and could not
// find out its outcome. Mostly the context ended. It is also possible that Bigtable began
// to refuse requests, or that garbage collection passed the transaction.
//
// The transaction may be committed at CommitTS, may still commit, or may never commit.
// This is neither a success nor a failure; running the transaction again could apply it
// twice. Client.Settle in package txn finds out the outcome, now or after a restart. It
// needs the exported fields, but not Err. errors.Is(err, ErrUndetermined) holds. If a
// context ended, so does errors.Is with the context's error.
type UndeterminedError struct {
	// Primary is the primary cell, whose state decides the transaction.
	Primary Cell
	StartTS tso.Timestamp
	// CommitTS is the commit_ts at which the client sent the commit.
	CommitTS tso.Timestamp
	// Err is the error that ended the attempts to find out.
	Err error
}

// Error names the primary, both timestamps and the reason.
func (e *UndeterminedError) Error() string {
	return fmt.Sprintf("percolator: %v: primary %s, start_ts %d, commit_ts %d: %v", ErrUndetermined, e.Primary, e.StartTS, e.CommitTS, e.Err)
}

// Is makes errors.Is(err, ErrUndetermined) true.
func (e *UndeterminedError) Is(target error) bool { return target == ErrUndetermined }

// Unwrap returns Err.
func (e *UndeterminedError) Unwrap() error { return e.Err }

// ErrorType returns the low-cardinality name of the error for telemetry.
func (e *UndeterminedError) ErrorType() string { return "undetermined" }

// A CorruptError names a cell whose stored records contradict the protocol.
// errors.Is(err, ErrCorrupt) holds.
type CorruptError struct {
	Cell Cell
	// Reason says what is wrong with the records.
	Reason string
}

// Error names the cell and the reason.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("percolator: %v: %s: %s", ErrCorrupt, e.Cell, e.Reason)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// ErrorType returns the low-cardinality name of the error for telemetry.
func (e *CorruptError) ErrorType() string { return "corrupt" }

// A TooOldError says that garbage collection has passed a timestamp: below the safe point
// it keeps only what later reads need. A read at TS could miss versions, and a write could
// overlook conflicts. Nothing was committed. A new transaction or snapshot works. For long
// ones, use the option Hold of package txn, or a longer retention for garbage collection.
// errors.Is(err, ErrTooOld) holds.
type TooOldError struct {
	// TS is the timestamp of the read, or the transaction's start_ts.
	TS tso.Timestamp
	// SafePoint is the safe point that the client read.
	SafePoint tso.Timestamp
	// Write says that a transaction wanted to write. A write needs TS above the safe
	// point; for a read, TS may be equal to it.
	Write bool
}

// Error names both timestamps and says what to do.
func (e *TooOldError) Error() string {
	what, advice := "read at", "take a new snapshot, use txn.Hold, or give garbage collection a longer retention"
	if e.Write {
		what, advice = "commit of the transaction that started at", "run it again in a new transaction; if it takes that long every time, give garbage collection a longer retention"
	}
	return fmt.Sprintf("percolator: %s %d (%s): %v: garbage collection has reached %d (%s), %v later: %s", what,
		e.TS, e.TS.Time().UTC().Format(time.RFC3339), ErrTooOld, e.SafePoint, e.SafePoint.Time().UTC().Format(time.RFC3339),
		e.SafePoint.Sub(e.TS).Round(time.Millisecond), advice)
}

// Is makes errors.Is(err, ErrTooOld) true.
func (e *TooOldError) Is(target error) bool { return target == ErrTooOld }

// ErrorType returns the low-cardinality name of the error for telemetry.
func (e *TooOldError) ErrorType() string { return "too_old" }

// Corruptf returns a [CorruptError] about cell. The reason is the text that the arguments
// give as in fmt.Sprintf.
func Corruptf(cell Cell, format string, args ...any) error {
	return &CorruptError{Cell: cell, Reason: fmt.Sprintf(format, args...)}
}

// Invalidf returns an error that matches [ErrInvalid], with the text that the arguments
// give as in fmt.Sprintf.
func Invalidf(format string, args ...any) error {
	return fmt.Errorf("percolator: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Retryable reports whether running the transaction again from the start, with a new
// start timestamp, may succeed. An error whose outcome is undetermined is not retryable.
func Retryable(err error) bool {
	return errors.Is(err, ErrConflict) && !errors.Is(err, ErrUndetermined)
}
