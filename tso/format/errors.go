package format

import (
	"cmp"
	"errors"
	"fmt"
)

var (
	// ErrMode matches every [*ModeError].
	ErrMode = errors.New("tso: oracle row belongs to another mode")

	// ErrCorrupt matches every [*CorruptError].
	ErrCorrupt = errors.New("tso: oracle row is corrupt")

	// ErrFormat matches every [*FormatError].
	ErrFormat = errors.New("tso: format version is not known")

	// ErrNotInitialized says that the metadata table, or the oracle's family
	// in it, does not exist.
	ErrNotInitialized = errors.New("tso: metadata table is not initialised")

	// ErrExhausted says that the largest timestamp was handed out: the clock,
	// or the oracle's row, is in the year 2262.
	ErrExhausted = errors.New("tso: no timestamp is left below the maximum")
)

// ModeError says that the oracle's row is in another mode than the oracle that
// uses it: direct mode refuses a row that was switched to served mode, and
// servers refuse one in direct mode. Two oracles over one deployment would
// break the order of timestamps. Nothing was changed.
type ModeError struct {
	Row  string // row key in the metadata table
	Mode string // the row's mode; empty for a row that was never used
	Want string // the mode of the oracle that refuses; empty means "direct"
}

func (e *ModeError) Error() string {
	want := cmp.Or(e.Want, ModeDirect)
	if e.Mode == "" {
		return fmt.Sprintf("tso: oracle row %q was never used, so it is not in %s mode: set it with `percctl tso mode %s`", e.Row, want, want)
	}
	return fmt.Sprintf("tso: oracle row %q is in mode %q, not in %s mode: use the oracle of that mode, or change it with `percctl tso mode`", e.Row, e.Mode, want)
}

// Is reports whether target is [ErrMode].
func (e *ModeError) Is(target error) bool { return target == ErrMode }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *ModeError) ErrorType() string { return "mode" }

// CorruptError says that the oracle's row holds a value that no oracle writes,
// or a value below a timestamp that this process already received (for example
// because the row was restored from a backup). To continue could hand out a
// timestamp twice, so no oracle repairs such a row automatically.
type CorruptError struct {
	Row    string // row key in the metadata table
	Column string // the damaged column; empty means "direct"
	Value  int64  // the value of column "direct"; 0 for the other columns
	Reason string // what is wrong with it
}

func (e *CorruptError) Error() string {
	if e.Column != "" && e.Column != ColumnDirect {
		return fmt.Sprintf("tso: oracle row %q is corrupt: its column %q %s; stop every server and client of this deployment, set column %q of that row to the highest timestamp in use (8 bytes, big-endian, at cell timestamp %d), which puts it into direct mode, delete its column %q, and switch back with `percctl tso mode served`",
			e.Row, e.Column, e.Reason, ColumnDirect, CellDirect, ColumnLease)
	}
	return fmt.Sprintf("tso: oracle row %q is corrupt: its value %d %s; stop every client of this deployment, then set column %q of that row to the highest timestamp in use (8 bytes, big-endian, at cell timestamp %d)",
		e.Row, e.Value, e.Reason, ColumnDirect, CellDirect)
}

// Is reports whether target is [ErrCorrupt].
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *CorruptError) ErrorType() string { return "corrupt" }

// FormatError says that another version of this software made a record of the
// oracle's row, or a request. Nothing was changed.
type FormatError struct {
	Where string // what has the version
	Found uint32
	Want  uint32
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("tso: %s has format version %d, this program knows version %d: run the release that wrote it", e.Where, e.Found, e.Want)
}

// Is reports whether target is [ErrFormat].
func (e *FormatError) Is(target error) bool { return target == ErrFormat }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *FormatError) ErrorType() string { return "format" }
