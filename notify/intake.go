package notify

import (
	"context"
	"log/slog"
	"sync"

	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// An intake takes cells from the finder and from hints, and puts each into the lane of
// its column.
type intake struct {
	client    *txn.Client
	logger    *slog.Logger
	lanes     map[target]*lane
	patterns  []target // of lanes, those with the longest prefixes first
	orphans   *orphans
	counters  *counters
	telemetry *telemetry
}

// lane returns the lane of a cell; nil: no observer of the worker watches the cell.
func (in *intake) lane(cell txn.Cell) *lane { return in.lanes[in.target(cell)] }

// target returns the key of a cell's lane: its column, or else the longest pattern that it is in.
// The lane has the handlers of all patterns that the cell is in. Without a lane, the table counts.
func (in *intake) target(cell txn.Cell) target {
	if to := targetOf(cell); in.lanes[to] != nil {
		return to
	}
	for _, to := range in.patterns {
		if to.contains(targetOf(cell)) {
			return to
		}
	}
	return target{table: cell.Table}
}

// offer is Search.Offer.
func (in *intake) offer(ctx context.Context, n changes.Notification, contended func()) (taken bool) {
	in.telemetry.scannedCell()
	l := in.lane(n.Cell)
	if l == nil {
		in.orphans.found(ctx, n)
		return false
	}
	if l.busy(n.Cell) || l.skipped(n) || l.allWaiting(n, changes.OracleNow(in.client)) {
		return false
	}
	if !l.offer(ctx, task{cell: n.Cell, contended: contended}, true) {
		return false
	}
	in.counters.found.Add(1)
	in.telemetry.took("scan")
	return true
}

// busy is Search.busy.
func (in *intake) busy(cell txn.Cell) bool {
	l := in.lane(cell)
	return l != nil && l.busy(cell)
}

// hint takes the cell of a hint, if there is room for it.
func (in *intake) hint(ctx context.Context, cell txn.Cell) (taken bool) {
	l := in.lane(cell)
	if l == nil || ctx.Err() != nil {
		return false
	}
	if !l.offer(ctx, task{cell: cell}, false) {
		in.counters.hintsDropped.Add(1)
		return false
	}
	in.counters.hinted.Add(1)
	in.telemetry.took("hint")
	return true
}

// takeHints takes hints of this process and, if the oracle carries hints, of other
// processes, until ctx ends or stop is called.
func (in *intake) takeHints(ctx context.Context) (stop func()) {
	stopWatching := changes.WatchNotifications(in.client, func(cell txn.Cell) bool { return in.hint(ctx, cell) })
	var columns []changes.ObservedColumn
	for to := range in.lanes {
		columns = append(columns, changes.ObservedColumn{Table: to.table, Column: to.column})
	}
	sctx, cancel := context.WithCancel(ctx)
	var subscribed sync.WaitGroup
	subscribed.Go(func() {
		err := changes.SubscribeHints(sctx, in.client, columns, func(cell txn.Cell) { in.hint(ctx, cell) })
		if err != nil && sctx.Err() == nil {
			in.logger.WarnContext(ctx, "subscribing to hints of other processes failed; the scan finds their changes later", "error", err)
		}
	})
	return func() {
		stopWatching()
		cancel()
		subscribed.Wait()
	}
}
