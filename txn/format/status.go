package format

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/tso"
)

// A State is what a transaction's primary cell says about its fate.
type State int8

// The states of a transaction.
const (
	// StateUnknown: the primary holds no trace of the transaction. Its prewrite
	// may still be on the way, or its owner has aborted it.
	StateUnknown State = iota
	// StateLocked: the primary lock is there; the transaction is undecided.
	StateLocked
	// StateCommitted is final.
	StateCommitted
	// StateRolledBack is final.
	StateRolledBack
)

// String returns unknown, locked, committed or rolled back.
func (s State) String() string {
	switch s {
	case StateUnknown:
		return "unknown"
	case StateLocked:
		return "locked"
	case StateCommitted:
		return "committed"
	case StateRolledBack:
		return "rolled back"
	}
	return fmt.Sprintf("state(%d)", int8(s))
}

// A Status is the outcome of a transaction as its primary shows it.
type Status struct {
	State State
	// CommitTS is set in StateCommitted.
	CommitTS tso.Timestamp
	// Lock is the primary lock, set in StateLocked.
	Lock *Lock
}

// Final reports whether the outcome cannot change any more.
func (s Status) Final() bool { return s.State == StateCommitted || s.State == StateRolledBack }

// A Resolution tells of one cell that a client settled for another
// transaction.
type Resolution struct {
	Lock   Lock
	Status Status
}
