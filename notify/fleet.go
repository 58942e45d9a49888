package notify

import (
	"context"
	"slices"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
)

// A fleet is the workers that have an observer in common with this one, and share the search for
// notifications with it. Other workers search other tables.
type fleet struct {
	share, rank int // how many workers there are, and the number of this one, from 0
	// old: a client of a release without a journal is running, or was within oldMaxAge.
	old     bool
	next    string // the token after this worker's; after the last one comes the first
	counted time.Time
	seenOld time.Time // 0: never
}

// workersMaxAge is how long a finder uses the number of workers.
const workersMaxAge = 10 * time.Second

// oldMaxAge is how long after the last client of a release without a journal workers sweep as before:
// it may have left changes that no worker has handled yet.
const oldMaxAge = time.Hour

// firstSweepAfter returns when the first sweep of a table begins that got a journal later. Until then
// a running client may use a schema from before (for up to twice its Config.SchemaMaxAge), and a
// commit takes a while.
func firstSweepAfter(ctx context.Context, client *txn.Client) (time.Duration, error) {
	workers, err := admin.Workers(ctx, client)
	var longest time.Duration
	for _, w := range workers {
		longest = max(longest, w.SchemaMaxAge)
	}
	return oldMaxAge + 2*longest, err
}

// count counts the workers, if that was long ago.
func (f *fleet) count(ctx context.Context, s Search) {
	if time.Since(f.counted) < workersMaxAge {
		return
	}
	workers, err := admin.Workers(ctx, s.Client)
	if err != nil {
		s.Logger.DebugContext(ctx, "counting the workers failed", "error", err)
		f.share = max(f.share, 1)
		return
	}
	f.learn(workers, admin.Owner(s.Client), s.Observers)
}

// learn takes what the tokens of all workers say, for the worker own with these observers.
func (f *fleet) learn(workers []admin.Worker, own string, observers []string) {
	var fleet []string // in order
	rank, old := 0, false
	for _, w := range workers {
		if w.State != admin.OwnerFresh {
			continue
		}
		old = old || w.SchemaMaxAge == 0
		mine := func(id string) bool { return slices.Contains(observers, id) }
		if !slices.ContainsFunc(w.Observers, mine) {
			continue
		}
		fleet = append(fleet, w.Owner)
		if w.Owner < own {
			rank++
		}
	}
	f.share = max(len(fleet), 1)
	f.rank, f.counted, f.next = rank%f.share, time.Now(), ""
	if f.share > 1 {
		f.next = fleet[(f.rank+1)%f.share]
	}
	if old {
		f.seenOld = f.counted
	}
	f.old = time.Since(f.seenOld) < oldMaxAge
}

// recount counts the workers again if the next one has died. If some workers die, but not all, then
// there is one that lives and whose next one has died. So someone counts again, at the cost of one
// read of a row by each worker.
func (f *fleet) recount(ctx context.Context, s Search) {
	if f.next == "" {
		return
	}
	w, err := admin.ReadOwner(ctx, s.Client, f.next, changes.OracleNow(s.Client))
	if err == nil && w.State != admin.OwnerFresh {
		f.count(ctx, s)
	}
}
