package notify

import "sync/atomic"

// Stats are counts since the worker was made.
type Stats struct {
	// Runs counts calls of observers. Committed, Failed, Conflicts, LostRaces, Snoozed
	// and Dropped count their outcomes.
	Runs      int64 `json:"runs"`
	Committed int64 `json:"committed"`
	Failed    int64 `json:"failed"`
	Conflicts int64 `json:"conflicts"`
	LostRaces int64 `json:"lost_races"`
	Snoozed   int64 `json:"snoozed"`
	Dropped   int64 `json:"dropped"`
	// Collapsed counts changes that a run handled together with a newer one.
	Collapsed int64 `json:"collapsed"`
	// Acknowledged counts checks of cells whose change was acknowledged already.
	Acknowledged int64 `json:"acknowledged"`
	// Parked counts changes that became dead letters.
	Parked int64 `json:"parked"`
	// Locked counts cells that this worker left to another one, which held their
	// advisory lock.
	Locked int64 `json:"locked"`
	// Found counts cells that the worker took from the finder, Hinted those it took from
	// hints, and HintsDropped the hints for which its queue had no room.
	Found        int64 `json:"found"`
	Hinted       int64 `json:"hinted"`
	HintsDropped int64 `json:"hints_dropped"`
	// Cleared counts cells whose notifications the worker removed.
	Cleared int64 `json:"cleared"`
}

// counters are Stats that several goroutines count.
type counters struct {
	runs, committed, failed, conflicts, lostRaces, snoozed, dropped, collapsed,
	acknowledged, parked, locked, found, hinted, hintsDropped, cleared atomic.Int64
}

func (c *counters) stats() Stats {
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

// count counts an event by its outcome.
func (c *counters) count(e Event) {
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
}
