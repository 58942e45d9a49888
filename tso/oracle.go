package tso

import (
	"context"
	"errors"
	"fmt"
)

// An Oracle hands out timestamps, strictly increasing in real time across
// everything that shares it: a timestamp asked for after another one was
// received, by whomever, is larger. Uniqueness alone is not enough; snapshot
// isolation is proved from this order.
//
// Implementations are safe for concurrent use.
type Oracle interface {
	// Timestamp returns the next timestamp. It fails when ctx ends, and then
	// errors.Is with context.Canceled or context.DeadlineExceeded holds;
	// and when the oracle cannot answer at all. After an error nothing is
	// left behind but, at most, a number that nobody will ever be given.
	Timestamp(ctx context.Context) (Timestamp, error)
}

var (
	// ErrClosed is returned by an oracle after its Close.
	ErrClosed = errors.New("tso: oracle is closed")

	// ErrExhausted says that [Max] was handed out: the clock, or the oracle's
	// row, is in the year 2262.
	ErrExhausted = errors.New("tso: no timestamp is left below the maximum")

	// ErrMode matches every [*ModeError].
	ErrMode = errors.New("tso: oracle row belongs to another mode")

	// ErrCorrupt matches every [*CorruptError].
	ErrCorrupt = errors.New("tso: oracle row is corrupt")

	// ErrNotInitialized says that the metadata table, or the oracle's family
	// in it, does not exist.
	ErrNotInitialized = errors.New("tso: metadata table is not initialised")
)

// ModeError says that the oracle's row is not in direct mode: it was handed to
// an oracle that is served by a process. Two oracles over one deployment would
// break the order of timestamps, so direct mode refuses. Nothing was changed.
type ModeError struct {
	Row  string // row key in the metadata table
	Mode string // what the row says instead, such as "served"
}

func (e *ModeError) Error() string {
	return fmt.Sprintf("tso: oracle row %q is in mode %q, not in direct mode: use the oracle of that mode, or change it with `percctl tso mode`", e.Row, e.Mode)
}

// Is reports whether target is [ErrMode].
func (e *ModeError) Is(target error) bool { return target == ErrMode }

// CorruptError says that the oracle's row holds a value no oracle writes, or
// one below a timestamp that this process was given already (a row restored
// from a backup, say). Going on could hand out a timestamp twice, so it is
// never repaired automatically.
type CorruptError struct {
	Row    string // row key in the metadata table
	Value  int64  // what the row holds
	Reason string // what is wrong with Value
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("tso: oracle row %q is corrupt: its value %d %s; stop every client of this deployment, then set column %q of that row to the highest timestamp in use (8 bytes, big-endian, at cell timestamp %d)",
		e.Row, e.Value, e.Reason, directColumn, directCell)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
