package txn

// ReadStats are counts of what saved requests.
type ReadStats struct {
	// PrefetchedCells counts cells that were read ahead, PrefetchUsed those of
	// them that were asked for later. The rest was in vain.
	PrefetchedCells int64 `json:"prefetched_cells"`
	PrefetchUsed    int64 `json:"prefetch_used"`
	// ReadBatches counts requests that point reads shared, BatchedReads the reads.
	ReadBatches  int64 `json:"read_batches"`
	BatchedReads int64 `json:"batched_reads"`
	// ReusedTimestamps counts snapshots that did not ask the oracle
	// ([WithMaxStaleness]).
	ReusedTimestamps int64 `json:"reused_timestamps"`
	// AheadTimestamps counts transactions whose start timestamp was asked for
	// before they began ([WriteOnly], retries).
	AheadTimestamps int64 `json:"ahead_timestamps"`
}

func readStats(c *readCounters) ReadStats {
	return ReadStats{
		PrefetchedCells:  c.prefetched.Load(),
		PrefetchUsed:     c.prefetchUsed.Load(),
		ReadBatches:      c.batches.Load(),
		BatchedReads:     c.batched.Load(),
		ReusedTimestamps: c.reused.Load(),
		AheadTimestamps:  c.asked.Load(),
	}
}
