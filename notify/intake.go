package notify

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn"

	"github.com/percolator-bigtable/percolator/txn/changes"
)

// An intake takes cells from the finder and from hints, and puts each into the lane of
// its column.
type intake struct {
	client    *txn.Client
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

// behind is Search.behind.
func (in *intake) behind() bool {
	for _, l := range in.lanes {
		if len(l.found)+len(l.queue) > 0 {
			return true
		}
	}
	return false
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
