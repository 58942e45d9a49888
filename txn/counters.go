package txn

import "sync/atomic"

// counters are what Stats reports.
type counters struct {
	begun, committed, conflicts, retries, undetermined atomic.Int64
	timestamps, locksMet                               atomic.Int64
	earlyConflicts, latchWaits, raises                 atomic.Int64
	rolledForward, rolledBack                          atomic.Int64
	backgroundDropped, backgroundRequests              atomic.Int64
	readCounters
}

type readCounters struct {
	prefetched, prefetchUsed atomic.Int64
	batches, batched         atomic.Int64
	reused, asked            atomic.Int64
}
