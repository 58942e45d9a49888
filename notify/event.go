package notify

import (
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// An Outcome says how a check of a cell ended for one observer.
type Outcome string

// The outcomes.
const (
	// Committed: the observer's writes and its acknowledgment are committed.
	Committed Outcome = "committed"
	// Acknowledged: there was nothing to do. The change was acknowledged already, or is
	// a dead letter.
	Acknowledged Outcome = "acknowledged"
	// LostRace: another run acknowledged the change first. This one rolled back.
	LostRace Outcome = "lost race"
	// Conflicted: the run conflicted with another transaction.
	Conflicted Outcome = "conflict"
	// Failed: the observer returned an error, or its commit failed.
	Failed Outcome = "failed"
	// Snoozed: the observer delayed the change.
	Snoozed Outcome = "snoozed"
	// Dropped: the observer dropped the change.
	Dropped Outcome = "dropped"
	// Parked: the change became a dead letter.
	Parked Outcome = "parked"
	// Waiting: the pause after an earlier failure has not ended.
	Waiting Outcome = "waiting"
	// Cancelled: the worker stopped and cancelled the run. It does not count as a
	// failure.
	Cancelled Outcome = "cancelled"
	// Unknown: the run could not begin, or the outcome of its commit is unknown.
	Unknown Outcome = "undetermined"
)

// An Event reports a check of a cell for one observer, to tests and telemetry.
type Event struct {
	Outcome  Outcome
	Observer string
	Cell     txn.Cell
	// ChangeTS is the newest change. StartTS and CommitTS belong to the transaction of
	// the run. A timestamp that is not known is 0.
	ChangeTS, StartTS, CommitTS tso.Timestamp
	// Collapsed is the number of older changes that the run handled too.
	Collapsed int
	// Duration of the run.
	Duration time.Duration
	Err      error
}
