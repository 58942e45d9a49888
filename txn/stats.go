package txn

import "github.com/percolator-bigtable/percolator/txn/internal/store"

// Stats are counts since the client was made.
type Stats struct {
	// Begun counts read-write transactions, each attempt of Update included.
	Begun int64 `json:"begun"`
	// Committed counts transactions that committed with writes or locks.
	Committed int64 `json:"committed"`
	// Conflicts counts attempts that failed with ErrConflict.
	Conflicts int64 `json:"conflicts"`
	// EarlyConflicts counts those of them that were known before a prewrite was
	// sent (Config.LatchWait).
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
	// LocksMet counts locks of other transactions whose outcome this
	// client did not know.
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

func newStats(c *store.Counters, cells, bytes int) Stats {
	return Stats{
		ReadStats: readStats(&c.ReadCounters),

		Begun:              c.Begun.Load(),
		Committed:          c.Committed.Load(),
		Conflicts:          c.Conflicts.Load(),
		EarlyConflicts:     c.EarlyConflicts.Load(),
		LatchWaits:         c.LatchWaits.Load(),
		Raises:             c.Raises.Load(),
		Retries:            c.Retries.Load(),
		Undetermined:       c.Undetermined.Load(),
		Timestamps:         c.Timestamps.Load(),
		LocksMet:           c.LocksMet.Load(),
		RolledForward:      c.RolledForward.Load(),
		RolledBack:         c.RolledBack.Load(),
		BackgroundCells:    int64(cells),
		BackgroundBytes:    int64(bytes),
		BackgroundRequests: c.BackgroundRequests.Load(),
		BackgroundDropped:  c.BackgroundDropped.Load(),
	}
}

// ReadStats are counts of what saved requests.
type ReadStats struct {
	// PrefetchedCells counts cells that were read ahead, PrefetchUsed those of
	// them that were asked for later. The rest was not needed.
	PrefetchedCells int64 `json:"prefetched_cells"`
	PrefetchUsed    int64 `json:"prefetch_used"`
	// ReadBatches counts requests that point reads shared, BatchedReads the reads.
	ReadBatches  int64 `json:"read_batches"`
	BatchedReads int64 `json:"batched_reads"`
	// ReusedTimestamps counts snapshots that did not ask the oracle
	// ([MaxStaleness]).
	ReusedTimestamps int64 `json:"reused_timestamps"`
	// AheadTimestamps counts transactions whose start timestamp was asked for
	// before they began ([WriteOnly], retries).
	AheadTimestamps int64 `json:"ahead_timestamps"`
}

func readStats(c *store.ReadCounters) ReadStats {
	return ReadStats{
		PrefetchedCells:  c.Prefetched.Load(),
		PrefetchUsed:     c.PrefetchUsed.Load(),
		ReadBatches:      c.Batches.Load(),
		BatchedReads:     c.Batched.Load(),
		ReusedTimestamps: c.Reused.Load(),
		AheadTimestamps:  c.Asked.Load(),
	}
}
