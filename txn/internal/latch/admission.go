package latch

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// commitsPerRequest is how many commits a client has under way at a time for each
// request of Config.Parallelism.
const CommitsPerRequest = 4

// An admission bounds the commits that a client has under way: it holds one token for
// each.
type Admission chan struct{}

func NewAdmission(commits int) Admission { return make(Admission, commits) }

// Admit waits for one of the places for commits. Without a bound, more commits
// than Bigtable gets done within their ttl take each other's time away: all of
// them hold locks that have to be kept alive by heartbeats, which are requests
// too, and none gets through. Whoever waits here holds no locks, so nobody waits
// for it, and its locks' ttl is counted from when they are written.
// Every nil is followed by one dismiss.
func (a Admission) Admit(ctx context.Context) error {
	select {
	case a <- struct{}{}:
		return nil
	case <-ctx.Done():
		return store.Ended(ctx, "waiting for other commits of this client to end", nil)
	}
}

// Release gives the place back.
func (a Admission) Release() { <-a }
