package soak

import (
	"context"
	"slices"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

// probePatience is how long a probe waits for a cell. It is far above the goals, so
// that slow recoveries are measured.
const probePatience = 30 * time.Second

// probe reads, for each open transaction of a killed client, a cell that it may have
// left locked. It measures the time from the kill until the reader has the cell.
// Without a probe, a lock could stay until a worker happens to read the cell.
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
				return // the client had not locked the cell, or the lock is gone
			}
			for readCell(ctx, e.client, cell) != nil && ctx.Err() == nil {
				// A request may fail because the server is stopped.
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.recovery = append(e.recovery, time.Since(died))
		})
	}
}

func isLocked(ctx context.Context, c *txn.Client, cell txn.Cell, startTS int64) bool {
	for l, err := range admin.TransactionLocks(ctx, c, cell.Table, bigtable.RowList{cell.Row}, tso.Timestamp(startTS)) {
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
