package format

import (
	"errors"
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

// Errors to match with errors.Is. The typed errors of this file carry the
// facts.
var (
	// ErrConflict: another transaction wrote or holds a cell this one writes,
	// or has rolled this one back. Nothing of this transaction was or will be
	// visible; running it again from the start may succeed.
	ErrConflict = errors.New("transaction conflict")
	// ErrUndetermined: the outcome of a commit could not be found out. See
	// [UndeterminedError].
	ErrUndetermined = errors.New("commit outcome undetermined")
	// ErrDone: the transaction was already committed or rolled back.
	ErrDone = errors.New("transaction is done")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("client is closed")
	// ErrNotInitialized: the metadata table or the schema record of a table is
	// missing.
	ErrNotInitialized = errors.New("not initialized")
	// ErrSchema: a table's families or garbage-collection policies do not fit,
	// or a write names a family that the table does not have.
	ErrSchema = errors.New("schema")
	// ErrFormatVersion: stored data is of a later format than this library
	// knows.
	ErrFormatVersion = errors.New("unknown storage format version")
	// ErrTooOld: garbage collection has passed the timestamp of a read or
	// transaction. See [TooOldError].
	ErrTooOld = errors.New("too old")
	// ErrCorrupt: stored records contradict the protocol. Nothing was changed.
	ErrCorrupt = errors.New("corrupt transaction metadata")
	// ErrInvalid: a call's arguments are wrong. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")
	// ErrLimit: a write is larger than Bigtable's limits. Nothing was sent.
	ErrLimit = errors.New("bigtable limit exceeded")
	// ErrSerializableScan: a serializable transaction asked for a read that
	// cannot be protected against phantoms.
	ErrSerializableScan = errors.New("scan in a serializable transaction")
)

// A ConflictReason says what a transaction ran into.
type ConflictReason string

// The reasons of a [ConflictError].
const (
	// ConflictWrite: the cell was committed, or lock-only committed, at
	// ConflictTS, after this transaction's start.
	ConflictWrite ConflictReason = "write"
	// ConflictLock: the cell is locked by the live transaction that started at
	// ConflictTS.
	ConflictLock ConflictReason = "lock"
	// ConflictMarker: a rollback marker of another transaction stands at
	// ConflictTS, after this transaction's start. It stands for no write, but
	// cannot be told from one where it counts; markers are rare.
	ConflictMarker ConflictReason = "rollback marker"
	// ConflictRolledBack: another client judged this transaction dead, because
	// its locks' ttl was over, and rolled it back. ConflictTS is zero.
	ConflictRolledBack ConflictReason = "rolled back"
)

// A ConflictError says on which cell a transaction failed, and against what.
// errors.Is(err, ErrConflict) holds.
type ConflictError struct {
	Cell       Cell
	StartTS    tso.Timestamp
	ConflictTS tso.Timestamp
	Reason     ConflictReason
}

func (e *ConflictError) Error() string {
	switch e.Reason {
	case ConflictRolledBack:
		return fmt.Sprintf("txn: %v: the transaction that started at %d was rolled back by another client, which found its lock on %s past its ttl", ErrConflict, e.StartTS, e.Cell)
	case ConflictLock:
		return fmt.Sprintf("txn: %v: %s is locked by the transaction that started at %d; this one started at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
	}
	if e.Reason == ConflictMarker {
		return fmt.Sprintf("txn: %v: %s has the rollback marker of the transaction that started at %d, after this one's start at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
	}
	return fmt.Sprintf("txn: %v: %s was written at %d, after this transaction's start at %d", ErrConflict, e.Cell, e.ConflictTS, e.StartTS)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *ConflictError) ErrorType() string { return "conflict" }

// An UndeterminedError says that the commit of the primary was sent and that its
// outcome could not be found out: mostly because the context ended, also because
// Bigtable began to refuse, or garbage collection has passed the transaction. It may
// be committed at CommitTS, may commit yet, or may never. It is neither a success
// nor a failure, and running the transaction again could apply it twice.
// [Client.Settle] finds the outcome out, now or after a restart: the exported
// fields are all it needs. errors.Is(err, ErrUndetermined) holds, and where a context
// ended, so does errors.Is with its error.
type UndeterminedError struct {
	Primary  Cell
	StartTS  tso.Timestamp
	CommitTS tso.Timestamp
	// Err is what ended the attempts to find out.
	Err error
}

func (e *UndeterminedError) Error() string {
	return fmt.Sprintf("txn: %v: primary %s, start_ts %d, commit_ts %d: %v", ErrUndetermined, e.Primary, e.StartTS, e.CommitTS, e.Err)
}

// Is makes errors.Is(err, ErrUndetermined) true.
func (e *UndeterminedError) Is(target error) bool { return target == ErrUndetermined }

// Unwrap returns Err.
func (e *UndeterminedError) Unwrap() error { return e.Err }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *UndeterminedError) ErrorType() string { return "undetermined" }

// A CorruptError names a cell whose stored records contradict the protocol.
// errors.Is(err, ErrCorrupt) holds.
type CorruptError struct {
	Cell   Cell
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("txn: %v: %s: %s", ErrCorrupt, e.Cell, e.Reason)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *CorruptError) ErrorType() string { return "corrupt" }

// A TooOldError says that the deployment's safe point has passed a timestamp:
// what was committed at or before the safe point is only kept as far as later
// reads need it. A read at TS would miss versions, a write would overlook
// conflicts; nothing was committed. A new transaction or snapshot works; see
// [Hold], and the retention of garbage collection, for long ones.
// errors.Is(err, ErrTooOld) holds.
type TooOldError struct {
	// TS is the timestamp of the read, or the transaction's start_ts.
	TS        tso.Timestamp
	SafePoint tso.Timestamp
	// Write: a transaction was to write. It needs TS above the safe point; a
	// read needs it not below.
	Write bool
}

func (e *TooOldError) Error() string {
	what, fix := "read at", "take a new snapshot, or a longer retention for garbage collection; txn.Hold keeps one readable"
	if e.Write {
		what, fix = "commit of the transaction that started at", "run it again in a new transaction; if it takes that long every time, garbage collection needs a longer retention"
	}
	return fmt.Sprintf("txn: %s %d (%s): %v: garbage collection has reached %d (%s), %v later: %s", what,
		e.TS, e.TS.Time().UTC().Format(time.RFC3339), ErrTooOld, e.SafePoint, e.SafePoint.Time().UTC().Format(time.RFC3339),
		(time.Duration(e.SafePoint-e.TS) * time.Microsecond).Round(time.Millisecond), fix)
}

// Is makes errors.Is(err, ErrTooOld) true.
func (e *TooOldError) Is(target error) bool { return target == ErrTooOld }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *TooOldError) ErrorType() string { return "too_old" }

func Corruptf(cell Cell, format string, args ...any) error {
	return &CorruptError{cell, fmt.Sprintf(format, args...)}
}

func Invalidf(format string, args ...any) error {
	return fmt.Errorf("txn: %w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Retryable reports that running the transaction again from the start, with a
// new start timestamp, may succeed.
func Retryable(err error) bool {
	return errors.Is(err, ErrConflict) && !errors.Is(err, ErrUndetermined)
}

// Because is u with another reason.
func (e *UndeterminedError) Because(err error) *UndeterminedError {
	return &UndeterminedError{Primary: e.Primary, StartTS: e.StartTS, CommitTS: e.CommitTS, Err: err}
}
