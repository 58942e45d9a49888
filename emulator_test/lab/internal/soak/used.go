package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/gc"
)

// The features of the library that a soak of all workloads must have used. A count is of real
// uses, not of attempts.
const (
	usedBatches  = "reads in batches"
	usedStale    = "stale snapshots"
	usedLatest   = "reads of the latest state"
	usedPasses   = "locks passed"
	usedReplays  = "dead letters replayed"
	usedGC       = "garbage collections"
	usedVersions = "versions collected"
	usedMarks    = "marks collected"
)

var features = []string{usedBatches, usedStale, usedLatest, usedPasses, usedReplays, usedGC, usedVersions, usedMarks, workload.IndexesCreated, workload.IndexesVerified, workload.IndexesDropped}

// missing returns the faults and features that a soak should have had and did not have. A
// soak with few histories need not have all.
func (o *options) missing(s *summary, workloads int) (missing []string) {
	if s.Histories < 2*workloads || o.workload != "all" || o.faultList != "all" || o.oracle != "both" || o.gc == "none" {
		return nil
	}
	for _, k := range kinds {
		if s.Faults[k] == 0 {
			missing = append(missing, "fault "+k)
		}
	}
	for _, f := range features {
		if s.Used[f] == 0 {
			missing = append(missing, f)
		}
	}
	return missing
}

// replayDead replays all dead letters, and returns how many there were. Faults may keep it
// from some.
func replayDead(ctx context.Context, c *txn.Client) (n int64) {
	for d, err := range changes.DeadLetters(ctx, c) {
		if err == nil && changes.Replay(ctx, c, d) == nil {
			n++
		}
	}
	return n
}

// collect collects garbage once, if no other client does.
func collect(ctx context.Context, c *txn.Client) map[string]int {
	r, err := gc.Run(ctx, c, gc.Config{Retention: retention})
	if r == nil {
		return nil
	}
	used := map[string]int{usedVersions: int(r.Total.Versions), usedMarks: int(r.Total.Marks)}
	if err == nil && !r.Nothing {
		used[usedGC] = 1
	}
	return used
}

// collectLast collects garbage when nothing else works. It must succeed.
func (e *episode) collectLast(ctx context.Context) error {
	if !e.at.Collect {
		return nil
	}
	r, err := gc.Run(ctx, e.client, gc.Config{Retention: retention})
	if err != nil {
		return fmt.Errorf("collecting garbage: %w", err)
	}
	if !r.Finished {
		return errors.New("collecting garbage: the run did not finish")
	}
	e.use(map[string]int{usedGC: 1, usedVersions: int(r.Total.Versions), usedMarks: int(r.Total.Marks)})
	return nil
}

func (e *episode) use(used map[string]int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for what, n := range used {
		if n > 0 {
			e.used[what] += n
		}
	}
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
