package txn

import "github.com/percolator-bigtable/percolator/txn/internal/store"

// Stats counts a client's work since NewClient.
type Stats struct {
	// Begun counts read-write transactions, each attempt of Update included.
	Begun int64 `json:"begun"`
	// Committed counts transactions that committed with writes or locks.
	Committed int64 `json:"committed"`
	// Conflicts counts attempts that failed with ErrConflict.
	Conflicts int64 `json:"conflicts"`
	// EarlyConflicts counts the conflicts that the client knew before it sent a prewrite
	// (Config.LatchWait). Conflicts includes them.
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
	// Timestamps counts requests to the timestamp oracle.
	Timestamps int64 `json:"timestamps"`
	// LocksMet counts locks of other transactions that this client found and whose
	// outcome it did not know.
	LocksMet int64 `json:"locks_met"`
	// RolledForward and RolledBack count cells that this client rolled forward or
	// back for other transactions.
	RolledForward int64 `json:"rolled_forward"`
	RolledBack    int64 `json:"rolled_back"`
	// BackgroundCells is how many changes of cells wait for the background now.
	BackgroundCells int64 `json:"background_cells"`
	// BackgroundBytes is about how much memory they take, in bytes.
	BackgroundBytes int64 `json:"background_bytes"`
	// BackgroundRequests counts the requests by which the background committed
	// secondaries or removed locks. One request covers many rows.
	BackgroundRequests int64 `json:"background_requests"`
	// BackgroundDropped counts rows whose background work the client gave up. The next
	// reader resolves their locks.
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

// ReadStats counts what saves requests: prefetching, read batches, and timestamps that need no
// question to the oracle.
type ReadStats struct {
	// PrefetchedCells counts cells that Gets read ahead. PrefetchUsed counts those that a
	// later Get asked for.
	PrefetchedCells int64 `json:"prefetched_cells"`
	PrefetchUsed    int64 `json:"prefetch_used"`
	// ReadBatches counts requests that several point reads shared (Config.BatchReads).
	// BatchedReads counts those reads.
	ReadBatches  int64 `json:"read_batches"`
	BatchedReads int64 `json:"batched_reads"`
	// ReusedTimestamps counts snapshots that did not ask the oracle
	// ([MaxStaleness]).
	ReusedTimestamps int64 `json:"reused_timestamps"`
	// LatestReads counts reads of the latest state ([Client.Latest]).
	LatestReads int64 `json:"latest_reads"`
}

func readStats(c *store.ReadCounters) ReadStats {
	return ReadStats{
		PrefetchedCells:  c.Prefetched.Load(),
		PrefetchUsed:     c.PrefetchUsed.Load(),
		ReadBatches:      c.Batches.Load(),
		BatchedReads:     c.Batched.Load(),
		ReusedTimestamps: c.Reused.Load(),
		LatestReads:      c.Latest.Load(),
	}
}
