package conformance

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/bigtable"
)

// RemovedCells says what removed cells cost. A commit leaves about two of them in its row: its lock,
// and often a rollback marker. Bigtable reads them until it compacts the tablet.
type RemovedCells struct {
	Pairs       int     `json:"pairs"`                                      // cells of one row that were set and deleted
	PerCell     float64 `json:"us_per_cell" unit:"us"`                      // how much longer a read of the row takes for each of them
	Read        float64 `json:"read_ms" unit:"ms"`                          // fastest read of the row before
	ReadNow     float64 `json:"read_with_removed_ms" unit:"ms"`             // fastest read of the row afterwards
	Commits     float64 `json:"commits_per_second" unit:"1/s"`              // commits of a hot cell, one after the other, without removed cells in its row
	CommitsWith float64 `json:"commits_per_second_with_removed" unit:"1/s"` // the same with 100,000 removed cells
}

const (
	manyRemoved = 100_000
	// fewRemoved is how many a verdict needs: at maxPerRemoved their cost is 2 ms.
	fewRemoved = 10_000
	// pairsPerRequest is small for the sake of emulators, which sort the cells of a column at each
	// change.
	pairsPerRequest = 200
	// removedProbes is how many requests of each kind are measured. The fastest counts, so that
	// nothing else that the service does counts as a cost of removed cells.
	removedProbes = 50
	// maxPerRemoved is what a removed cell may cost, in microseconds. With more, a hot cell of
	// 20 ms a commit makes less than a quarter of its commits, if 100,000 removed cells are in its row.
	maxPerRemoved = 0.2
)

// costs are assumptions about what a service needs time for.
var costs = []Assumption{
	{
		ID: "removed-cells", Group: "Costs", Class: Optional,
		Title:  "A removed cell makes a later read of its row at most 0.2 µs slower.",
		Used:   "each commit removes its locks (`txn/commit.go`), and garbage collection removes versions (`txn/gc/rules.go`)",
		Source: "assumed: a service reads removed cells until it compacts them; " + garbage,
		Breaks: "A cell that is changed all the time becomes slower until the service compacts its tablet. The report has the commits in a second.",
		Advice: "Divide cells that are changed all the time over several rows.",
		needs:  SingleRow,
		cost:   cost{loops: true, patience: 5, bytes: 24 << 20},
		test:   testRemovedCells,
	},
}

// testRemovedCells measures the requests of a commit before and after cells of their row were
// set and deleted: 100,000 of them if Config.Requests and Config.Duration suffice.
func testRemovedCells(ctx context.Context, t *trial) error {
	t.begin()
	row := t.row("hot")
	if err := t.apply(ctx, row, set("v", 1, "v")); err != nil {
		return err
	}
	read, conditional, err := t.hotRow(ctx, row)
	if err != nil {
		return err
	}
	pairs := 0
	for ; pairs < min(manyRemoved, 25*t.cfg.Requests) && t.more(ctx); pairs += pairsPerRequest {
		c := changes()
		for i := range pairsPerRequest {
			ms := int64(pairs + i + 1)
			c.set(family1, "lock", ms, "lock")
			if pairs > 0 {
				c.remove(family1, "lock", ms-pairsPerRequest, ms-pairsPerRequest+1)
			}
		}
		if err := t.apply(ctx, row, c); err != nil {
			return err
		}
	}
	if err := t.apply(ctx, row, changes().remove(family1, "lock", 0, 0)); err != nil {
		return err
	}
	readNow, conditionalNow, err := t.hotRow(ctx, row)
	if err != nil {
		return err
	}
	if pairs < min(fewRemoved, 25*t.cfg.Requests) {
		// What the fastest reads differ by would not be the cost of removed cells.
		return fmt.Errorf("%w or more time: %d cells were set and removed, and a verdict needs %d", errSpent, pairs, fewRemoved)
	}
	ms := func(d time.Duration) float64 { return float64(d.Round(time.Microsecond)) / float64(time.Millisecond) }
	perCell := max(readNow-read, 0).Seconds() * 1e6 / float64(pairs)
	// A commit that reads a cell and writes it: a read, the prewrite, and the commit of the primary.
	commit := read + 2*conditional
	slower := max(readNow+2*conditionalNow-commit, 0).Seconds() * manyRemoved / float64(pairs)
	t.removed = &RemovedCells{
		Pairs: pairs, PerCell: perCell, Read: ms(read), ReadNow: ms(readNow),
		Commits: 1 / commit.Seconds(), CommitsWith: 1 / (commit.Seconds() + slower),
	}
	if perCell > maxPerRemoved {
		return brokenf("a removed cell makes a read of its row %.2f µs slower; with %d of them in its row, a hot cell makes %.1f commits/s instead of %.1f", perCell, manyRemoved, t.removed.CommitsWith, t.removed.Commits)
	}
	return nil
}

// hotRow returns how long the fastest read and the fastest conditional mutation of a row take, as
// transactions send them.
func (t *trial) hotRow(ctx context.Context, row string) (read, conditional time.Duration, err error) {
	conflict := bigtable.InterleaveFilters(exact(family1, "lock"), bigtable.ChainFilters(exact(family1, "v"), between(2, 0)))
	fastest := func(d *time.Duration, f func() error) error {
		begun := time.Now()
		err := f()
		if took := time.Since(begun); *d == 0 || took < *d {
			*d = took
		}
		return err
	}
	for range removedProbes {
		if err := fastest(&read, func() error {
			_, err := t.read(ctx, row, readFilter)
			return err
		}); err != nil {
			return 0, 0, err
		}
		if err := fastest(&conditional, func() error {
			matched, err := t.check(ctx, row, conflict, set("wrong", 1, "w"), set("v", 1, "v"))
			if err == nil && matched {
				err = brokenf("a conditional mutation found a lock that was removed")
			}
			return err
		}); err != nil {
			return 0, 0, err
		}
	}
	return read, conditional, nil
}
