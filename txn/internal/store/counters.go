package store

import "sync/atomic"

// Counters are the numbers that txn.Client.Stats reports.
type Counters struct {
	Begun, Committed, Conflicts, Retries, Undetermined atomic.Int64
	Timestamps, LocksMet                               atomic.Int64
	EarlyConflicts, LatchWaits, Raises                 atomic.Int64
	RolledForward, RolledBack                          atomic.Int64
	BackgroundDropped, BackgroundRequests              atomic.Int64
	ReadCounters
}

// ReadCounters are the numbers about reads.
type ReadCounters struct {
	Prefetched, PrefetchUsed atomic.Int64
	Batches, Batched         atomic.Int64
	Reused, Latest           atomic.Int64
}
