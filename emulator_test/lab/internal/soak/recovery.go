package soak

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/emulator_test/history"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// probePatience is how long a probe waits for a cell. It is far above what the
// goals allow, so that what is slow is measured and not cut off.
const probePatience = 30 * time.Second

// probe reads a cell that a killed client may have left locked, for each of its
// transactions, and measures how long it was from the kill until the reader had
// it. Locks that nobody comes upon are in nobody's way; so somebody comes upon
// these at once.
func probe(ctx context.Context, e *episode, died time.Time, open []history.Record) {
	for _, r := range open {
		i := slices.IndexFunc(r.Value, func(o history.Op) bool { return o.F != history.Read })
		if i < 0 || r.StartTS == 0 {
			continue
		}
		cell := e.load.Cell(r.Value[i].Key)
		e.probes.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probePatience)
			defer cancel()
			if !isLocked(ctx, e.client, cell, r.StartTS) {
				return // it had sent nothing, or nothing is left
			}
			for readCell(ctx, e.client, cell) != nil && ctx.Err() == nil {
				// A server may be stopped for longer than a request waits.
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.recovery = append(e.recovery, time.Since(died))
		})
	}
}

func isLocked(ctx context.Context, c *txn.Client, cell txn.Cell, startTS int64) bool {
	for l, err := range admin.LocksOf(ctx, c, cell.Table, bigtable.RowList{cell.Row}, tso.Timestamp(startTS)) {
		if err == nil && l.Cell == cell {
			return true
		}
	}
	return false
}

func readCell(ctx context.Context, c *txn.Client, cell txn.Cell) error {
	s, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	_, _, err = s.Table(cell.Table).Get(ctx, cell.Row, cell.Family, cell.Qualifier)
	return err
}
