package latch

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// CommitsPerRequest is how many commits a client runs at a time for each request of
// Config.Parallelism.
const CommitsPerRequest = 4

// Admission bounds how many commits a client runs at a time. It holds one token for each
// of them.
type Admission chan struct{}

// NewAdmission returns an Admission for that many commits at a time.
func NewAdmission(commits int) Admission { return make(Admission, commits) }

// Admit waits for a place. The caller calls Release for every nil result. The error is
// that of the ended context.
//
// If a client ran more commits than Bigtable completes within their ttl, they would take
// time from each other: all of them hold locks, heartbeats must keep these locks alive,
// and heartbeats are requests too. In the end, no commit would complete. A commit that
// waits here holds no locks, so no transaction waits for it, and its ttl has not begun.
func (a Admission) Admit(ctx context.Context) error {
	select {
	case a <- struct{}{}:
		return nil
	case <-ctx.Done():
		return store.Ended(ctx, "percolator: waiting for other commits of this client to end", nil)
	}
}

// Release gives the place back.
func (a Admission) Release() { <-a }
