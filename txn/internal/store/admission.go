package store

import "context"

// An Admission bounds how much of one kind a client does at a time. It holds one token for
// each.
//
// It bounds commits. If a client ran more of them than Bigtable completes within their ttl,
// they would take time from each other: all of them hold locks, heartbeats must keep these
// locks alive, and heartbeats are requests too. In the end, no commit would complete. A
// commit that waits here holds no locks, so no transaction waits for it, and its ttl has not
// begun.
//
// It also bounds reads (retry.go).
type Admission chan struct{}

// Admit waits for a place. The caller calls Release for every nil result. The error is that
// of the ended context; others says what has the places.
func (a Admission) Admit(ctx context.Context, others string) error {
	select {
	case a <- struct{}{}:
		return nil
	case <-ctx.Done():
		return Ended(ctx, "percolator: waiting for other "+others+" of this client to end", nil)
	}
}

// Release gives the place back.
func (a Admission) Release() { <-a }
