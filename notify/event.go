package notify

import (
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// An Outcome says how a worker's look at a cell ended for one observer.
type Outcome string

// The outcomes.
const (
	// Committed: the observer's writes and its acknowledgment are committed.
	Committed Outcome = "committed"
	// Acknowledged: there was nothing to do; the change had been acknowledged, or
	// become a dead letter.
	Acknowledged Outcome = "acknowledged"
	// LostRace: another run acknowledged the change first. This one ran in vain.
	LostRace Outcome = "lost race"
	// Conflicted: the run conflicted with another transaction.
	Conflicted Outcome = "conflict"
	// Failed: the observer returned an error, or its commit failed.
	Failed Outcome = "failed"
	// Snoozed: the observer put the change off.
	Snoozed Outcome = "snoozed"
	// Dropped: the observer put the change away.
	Dropped Outcome = "dropped"
	// Parked: the change became a dead letter.
	Parked Outcome = "parked"
	// Waiting: an earlier failure's pause is not over.
	Waiting Outcome = "waiting"
	// Cancelled: the end of the worker cancelled the run. It counts as no attempt.
	Cancelled Outcome = "cancelled"
	// Unknown: the run could not begin, or the outcome of its commit is not known.
	Unknown Outcome = "undetermined"
)

// An Event is a step of a worker's, for tests and telemetry.
type Event struct {
	Outcome  Outcome
	Observer string
	Cell     txn.Cell
	// ChangeTS is the newest change, StartTS and CommitTS are the run's
	// transaction. Those that are not known are 0.
	ChangeTS, StartTS, CommitTS tso.Timestamp
	// Collapsed is how many further changes the run handled.
	Collapsed int
	// Duration of the run.
	Duration time.Duration
	Err      error
}

// Stats are counts since the worker was made.
type Stats struct {
	// Runs counts calls of observers; Committed, Failed, Conflicts, LostRaces,
	// Snoozed and Dropped how they ended.
	Runs      int64 `json:"runs"`
	Committed int64 `json:"committed"`
	Failed    int64 `json:"failed"`
	Conflicts int64 `json:"conflicts"`
	LostRaces int64 `json:"lost_races"`
	Snoozed   int64 `json:"snoozed"`
	Dropped   int64 `json:"dropped"`
	// Collapsed counts changes that were handled along with a newer one.
	Collapsed int64 `json:"collapsed"`
	// Acknowledged counts looks at cells whose change had been acknowledged.
	Acknowledged int64 `json:"acknowledged"`
	// Parked counts changes that became dead letters.
	Parked int64 `json:"parked"`
	// Locked counts cells that were left to another worker.
	Locked int64 `json:"locked"`
	// Found counts notifications that the finder found, Hinted those that a hint
	// told of, HintsDropped hints for which the queue had no room.
	Found        int64 `json:"found"`
	Hinted       int64 `json:"hinted"`
	HintsDropped int64 `json:"hints_dropped"`
	// Cleared counts cells whose notifications were removed.
	Cleared int64 `json:"cleared"`
}

type counters struct {
	runs, committed, failed, conflicts, lostRaces, snoozed, dropped, collapsed,
	acknowledged, parked, locked, found, hinted, hintsDropped, cleared atomic.Int64
}

// Stats returns the worker's counts.
func (w *Worker) Stats() Stats {
	c := &w.counters
	return Stats{
		Runs:         c.runs.Load(),
		Committed:    c.committed.Load(),
		Failed:       c.failed.Load(),
		Conflicts:    c.conflicts.Load(),
		LostRaces:    c.lostRaces.Load(),
		Snoozed:      c.snoozed.Load(),
		Dropped:      c.dropped.Load(),
		Collapsed:    c.collapsed.Load(),
		Acknowledged: c.acknowledged.Load(),
		Parked:       c.parked.Load(),
		Locked:       c.locked.Load(),
		Found:        c.found.Load(),
		Hinted:       c.hinted.Load(),
		HintsDropped: c.hintsDropped.Load(),
		Cleared:      c.cleared.Load(),
	}
}

// event counts an outcome and tells Config.OnEvent.
func (w *Worker) event(e Event) {
	c := &w.counters
	switch e.Outcome {
	case Committed:
		c.committed.Add(1)
		c.collapsed.Add(int64(e.Collapsed))
	case Acknowledged:
		c.acknowledged.Add(1)
	case LostRace:
		c.lostRaces.Add(1)
	case Conflicted:
		c.conflicts.Add(1)
	case Failed:
		c.failed.Add(1)
	case Snoozed:
		c.snoozed.Add(1)
	case Dropped:
		c.dropped.Add(1)
	case Parked:
		c.parked.Add(1)
	}
	if w.cfg.OnEvent != nil {
		w.cfg.OnEvent(e)
	}
}
