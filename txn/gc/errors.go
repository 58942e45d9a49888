package gc

import (
	"fmt"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// A BlockedError says that a run stopped before it removed anything, because
// transactions at or below the safe point are alive. The transactions continue.
// The safe point stays published, and the next run tries again.
type BlockedError struct {
	SafePoint tso.Timestamp
	// Locks are the first 100 locks of these transactions.
	Locks []format.Lock
	// Count is the number of all their locks.
	Count int64
}

// Error names the transaction that started first.
func (e *BlockedError) Error() string {
	oldest := e.Locks[0]
	for _, l := range e.Locks {
		if l.StartTS < oldest.StartTS {
			oldest = l
		}
	}
	return fmt.Sprintf("gc: blocked, and nothing was removed: %d locks at or below the safe point %d belong to live transactions; the oldest started at %d (%s), its owner is %q, and it locks %s: wait until it ends, or stop its client, and collect again", e.Count, e.SafePoint, oldest.StartTS, oldest.StartTS.Time().UTC().Format(time.RFC3339), oldest.Owner, oldest.Cell)
}

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BlockedError) ErrorType() string { return "gc_blocked" }

// A BusyError says that another collector works on the deployment.
type BusyError struct {
	// Holder is the other collector: its host, process id and a random part.
	Holder string
	// Left is how long its lease lasts, unless it renews it.
	Left time.Duration
	// Lost is set if this run had the lease and lost it. What it removed stays
	// removed.
	Lost bool
}

// Error names the other collector.
func (e *BusyError) Error() string {
	if e.Lost {
		return fmt.Sprintf("gc: stopped, because collector %s took the lease; what was removed stays removed", e.Holder)
	}
	return fmt.Sprintf("gc: collector %s is working; its lease ends in %v unless it renews it: collect again later", e.Holder, e.Left.Round(time.Second))
}

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BusyError) ErrorType() string { return "gc_busy" }

func invalidf(text string, args ...any) error {
	return fmt.Errorf("gc: %w: %s", format.ErrInvalid, fmt.Sprintf(text, args...))
}
