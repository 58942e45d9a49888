package txn

import (
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

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
