package txn

// Stats are counts since the client was made.
type Stats struct {
	// Begun counts read-write transactions, each attempt of Update included.
	Begun int64 `json:"begun"`
	// Committed counts transactions that committed with writes or locks.
	Committed int64 `json:"committed"`
	// Conflicts counts attempts that failed with ErrConflict.
	Conflicts int64 `json:"conflicts"`
	// EarlyConflicts counts those of them that were known before a prewrite was
	// sent (Config.RecentCommits).
	EarlyConflicts int64 `json:"early_conflicts"`
	// LatchWaits counts waits for other transactions of this client that write the
	// same cells (Config.LatchWait).
	LatchWaits int64 `json:"latch_waits"`
	// Raises counts locks of live transactions that reads passed by raising their
	// minimum commit_ts (Config.PassLocks).
	Raises int64 `json:"raises"`
	// Retries counts reruns of functions given to Update.
	Retries int64 `json:"retries"`
	// Undetermined counts commits that returned UndeterminedError.
	Undetermined int64 `json:"undetermined"`
	// Timestamps counts questions to the oracle.
	Timestamps int64 `json:"timestamps"`
	// LocksMet counts locks of other transactions whose fate was not in the
	// resolver's cache.
	LocksMet int64 `json:"locks_met"`
	// RolledForward and RolledBack count cells settled for other transactions.
	RolledForward int64 `json:"rolled_forward"`
	RolledBack    int64 `json:"rolled_back"`
	// BackgroundCells is the number of changes of cells that wait for background
	// work now.
	BackgroundCells int64 `json:"background_cells"`
	// BackgroundBytes is about the memory that they take.
	BackgroundBytes int64 `json:"background_bytes"`
	// BackgroundRequests counts requests of the background that commit
	// secondaries or remove locks, each for many rows.
	BackgroundRequests int64 `json:"background_requests"`
	// BackgroundDropped counts rows of background work that were given up.
	BackgroundDropped int64 `json:"background_dropped"`
	ReadStats
}

// Stats returns the client's counts.
func (c *Client) Stats() Stats {
	cells, bytes := c.Background.Queued()
	return Stats{
		ReadStats: readStats(&c.Counters.ReadCounters),

		Begun:              c.Counters.Begun.Load(),
		Committed:          c.Counters.Committed.Load(),
		Conflicts:          c.Counters.Conflicts.Load(),
		EarlyConflicts:     c.Counters.EarlyConflicts.Load(),
		LatchWaits:         c.Counters.LatchWaits.Load(),
		Raises:             c.Counters.Raises.Load(),
		Retries:            c.Counters.Retries.Load(),
		Undetermined:       c.Counters.Undetermined.Load(),
		Timestamps:         c.Counters.Timestamps.Load(),
		LocksMet:           c.Counters.LocksMet.Load(),
		RolledForward:      c.Counters.RolledForward.Load(),
		RolledBack:         c.Counters.RolledBack.Load(),
		BackgroundCells:    int64(cells),
		BackgroundBytes:    int64(bytes),
		BackgroundRequests: c.Counters.BackgroundRequests.Load(),
		BackgroundDropped:  c.Counters.BackgroundDropped.Load(),
	}
}
