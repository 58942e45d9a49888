package format

import (
	"fmt"

	"github.com/percolator-bigtable/percolator/tso"
)

// A State is the state of a transaction, as its primary cell shows it.
type State int8

// The states of a transaction.
const (
	// StateUnknown: the primary holds no trace of the transaction. Its prewrite may
	// still arrive, or its owner has rolled it back.
	StateUnknown State = iota
	// StateLocked: the primary lock exists. The transaction may still commit.
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

// A Status is the state of a transaction with its details, as its primary cell shows
// them.
type Status struct {
	State State
	// CommitTS is set in StateCommitted.
	CommitTS tso.Timestamp
	// Lock is the primary lock. It is set in StateLocked.
	Lock *Lock
}

// Final reports whether the outcome can no longer change.
func (s Status) Final() bool { return s.State == StateCommitted || s.State == StateRolledBack }

// A Resolution is one cell that a client rolled forward or back on behalf of another
// transaction.
type Resolution struct {
	// Lock is the lock as the client found it.
	Lock Lock
	// Status is the outcome of the transaction that wrote the lock.
	Status Status
}
