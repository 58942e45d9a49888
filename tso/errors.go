package tso

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
)

var (
	// ErrClosed is returned by an oracle after its Close.
	ErrClosed = errors.New("tso: oracle is closed")

	// ErrExhausted says that [Max] was handed out: the clock, or the oracle's
	// row, is in the year 2262.
	ErrExhausted = format.ErrExhausted

	// ErrMode matches every [*ModeError].
	ErrMode = format.ErrMode

	// ErrCorrupt matches every [*CorruptError].
	ErrCorrupt = format.ErrCorrupt

	// ErrFormat matches every [*FormatError].
	ErrFormat = format.ErrFormat

	// ErrNotInitialized says that the metadata table, or the oracle's family
	// in it, does not exist.
	ErrNotInitialized = format.ErrNotInitialized

	// ErrNotLeader says that a server could not answer because it does not
	// lead, or could not be sure that it still does.
	ErrNotLeader = errors.New("tso: server is not the leader")

	// ErrUnavailable matches every [*UnavailableError].
	ErrUnavailable = errors.New("tso: no server answers")

	// ErrBackwards matches every [*BackwardsError].
	ErrBackwards = errors.New("tso: server went backwards")

	// errSlow is in the error for a server that did not answer in time.
	errSlow = errors.New("tso: no answer in time")
)

// outcomes are the names of this package's errors for telemetry.
var outcomes = []telemetry.Outcome{
	{Err: ErrNotLeader, Name: "not leader"},
	{Err: ErrBackwards, Name: "backwards"},
	{Err: ErrClosed, Name: "closed"},
	{Err: errSlow, Name: "slow"},
	{Err: ErrUnavailable, Name: "unavailable"},
}

// ModeError says that the oracle's row is in another mode than the oracle that uses it:
//
//	Row  string  // row key in the metadata table
//	Mode string  // the row's mode; empty for a row that was never used
//	Want string  // the mode that was expected; empty means "direct"
type ModeError = format.ModeError

// CorruptError says that the oracle's row holds a value that no oracle writes,
// or a value below a timestamp that this process already received (for example
// because the row was restored from a backup):
//
//	Row    string  // row key in the metadata table
//	Column string  // the damaged column; empty means "direct"
//	Value  int64   // of column "direct"; 0 for the other columns
//	Reason string  // what is wrong with it
//
// No oracle repairs such a row automatically.
type CorruptError = format.CorruptError

// FormatError says that another version of this software made a record of the
// oracle's row, or a request:
//
//	Where string  // what has the version
//	Found uint32
//	Want  uint32
type FormatError = format.FormatError

// A LeaderError says that the oracle's row could not be changed because a server
// leads. Nothing was changed.
type LeaderError struct {
	Row     string
	Leader  string
	Address string
}

func (e *LeaderError) Error() string {
	return fmt.Sprintf("tso: oracle row %q is led by server %q at %s, which renews its lease: stop every `percctl tso serve` first, then change the mode", e.Row, e.Leader, e.Address)
}

// An UnavailableError says that no server answered in time. Servers has the
// reason of each server, in the order of the configuration.
type UnavailableError struct {
	Waited  time.Duration
	Servers []ServerError
}

// A ServerError is why one server did not answer.
type ServerError struct {
	Address string
	Err     error // nil if it was not asked
}

func (e *UnavailableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tso: no oracle server answered for %s", e.Waited.Round(time.Millisecond))
	for i, s := range e.Servers {
		fmt.Fprintf(&b, "%s %s: ", []string{":", ";"}[min(i, 1)], s.Address)
		if s.Err == nil {
			b.WriteString("not asked")
		} else {
			b.WriteString(strings.TrimPrefix(s.Err.Error(), "tso: "))
		}
	}
	return b.String()
}

// Is reports whether target is [ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *UnavailableError) ErrorType() string { return "unavailable" }

// A BackwardsError says that a server answered with a timestamp that is not
// above one that this client received before. Either servers of two deployments
// are configured together, or the oracle's row was restored from a backup. The
// client hands nothing out. It closes the connection to that server, and its
// next request looks for the leader again, starting at another server. Requests
// fail until the leader's timestamps are above High.
type BackwardsError struct {
	Address string
	Got     Timestamp
	High    Timestamp
}

func (e *BackwardsError) Error() string {
	return fmt.Sprintf("tso: server %s went backwards: it answered %d, but %d was handed out before; stop the clients of this deployment, and check that all servers use one oracle row and that it was not restored from a backup", e.Address, e.Got, e.High)
}

// Is reports whether target is [ErrBackwards].
func (e *BackwardsError) Is(target error) bool { return target == ErrBackwards }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BackwardsError) ErrorType() string { return "backwards" }
