package txn

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
)

// A Hop is one run of an observer that caused a change.
type Hop struct {
	Observer string
	// Cell is what the observer ran for.
	Cell Cell
	// StartTS and CommitTS of the run's transaction.
	StartTS, CommitTS tso.Timestamp
}

// Trail follows a change back through the runs of observers that led to it, the
// last one first, for at most n runs. An observer's transaction has its
// acknowledgment as its primary, and every write record leads to its primary, so
// the way back is stored. It ends early at a change that no observer wrote, at a
// weak notification, which does not say who set it, and at versions that were
// garbage-collected.
func Trail(ctx context.Context, client *Client, o *Observation, n int) ([]Hop, error) {
	c := resolverOf(client)
	var hops []Hop
	for w := o.writer; len(hops) < n; {
		col, observer, ok := ObserverOf(w.primary.Column())
		if !ok {
			break
		}
		cell := Cell{w.primary.Table, w.primary.Row, col.Family, col.Qualifier}
		hops = append(hops, Hop{observer, cell, w.startTS, w.commitTS})
		t, err := c.table(ctx, cell.Table)
		if err != nil {
			return hops, err
		}
		raw, err := t.readRow(ctx, cell.Row, interleave(chain(column(WriteFamily, col.key()), upTo(w.startTS), bigtable.LatestNFilter(1))))
		if err != nil {
			return hops, err
		}
		if len(raw[WriteFamily]) == 0 {
			break
		}
		item := raw[WriteFamily][0]
		if w, err = decodeWrite(cell, tso.FromCell(item.Timestamp), item.Value); err != nil {
			return hops, err
		}
	}
	return hops, nil
}
