package tso

import (
	"cmp"
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

	// ErrFormat matches every [*FormatError].
	ErrFormat = errors.New("tso: format version is not known")

	// ErrNotLeader says that a server could not answer because it does not
	// lead, or could not be sure that it still does.
	ErrNotLeader = errors.New("tso: server is not the leader")

	// ErrUnavailable matches every [*UnavailableError].
	ErrUnavailable = errors.New("tso: no server answers")

	// ErrBackwards matches every [*BackwardsError].
	ErrBackwards = errors.New("tso: server went backwards")

	// ErrNotInitialized says that the metadata table, or the oracle's family
	// in it, does not exist.
	ErrNotInitialized = errors.New("tso: metadata table is not initialised")
)

// ModeError says that the oracle's row is not in the mode of the one who
// uses it: direct mode refuses a row that was handed to servers, and servers
// refuse one in direct mode. Two oracles over one deployment would break the
// order of timestamps. Nothing was changed.
type ModeError struct {
	Row  string // row key in the metadata table
	Mode string // what the row says; empty for a row that was never used
	Want string // the mode of whoever refuses; empty means "direct"
}

func (e *ModeError) Error() string {
	want := cmp.Or(e.Want, directMode)
	if e.Mode == "" {
		return fmt.Sprintf("tso: oracle row %q was never used, so it is not in %s mode: set it with `percctl tso mode %s`", e.Row, want, want)
	}
	return fmt.Sprintf("tso: oracle row %q is in mode %q, not in %s mode: use the oracle of that mode, or change it with `percctl tso mode`", e.Row, e.Mode, want)
}

// Is reports whether target is [ErrMode].
func (e *ModeError) Is(target error) bool { return target == ErrMode }

// CorruptError says that the oracle's row holds a value no oracle writes, or
// one below a timestamp that this process was given already (a row restored
// from a backup, say). Going on could hand out a timestamp twice, so it is
// never repaired automatically.
type CorruptError struct {
	Row    string // row key in the metadata table
	Column string // the damaged column; empty means "direct"
	Value  int64  // what "direct" holds; 0 for the other columns
	Reason string // what is wrong with it
}

func (e *CorruptError) Error() string {
	if e.Column != "" && e.Column != directColumn {
		return fmt.Sprintf("tso: oracle row %q is corrupt: its column %q %s; stop every server and client of this deployment, set column %q of that row to the highest timestamp in use (8 bytes, big-endian, at cell timestamp %d), which puts it into direct mode, delete its column %q, and switch back with `percctl tso mode served`",
			e.Row, e.Column, e.Reason, directColumn, directCell, leaseColumn)
	}
	return fmt.Sprintf("tso: oracle row %q is corrupt: its value %d %s; stop every client of this deployment, then set column %q of that row to the highest timestamp in use (8 bytes, big-endian, at cell timestamp %d)",
		e.Row, e.Value, e.Reason, directColumn, directCell)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// FormatError says that a record of the oracle's row, or a request, was made
// by another version of this software. Nothing was changed.
type FormatError struct {
	Where string // what carries the version
	Found uint32
	Want  uint32
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("tso: %s has format version %d, this program knows version %d: run the release that wrote it", e.Where, e.Found, e.Want)
}

// Is reports whether target is [ErrFormat].
func (e *FormatError) Is(target error) bool { return target == ErrFormat }
