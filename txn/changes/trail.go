package changes

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A Hop is one run of an observer that caused a change.
type Hop struct {
	Observer string
	// Cell is what the observer ran for.
	Cell format.Cell
	// StartTS and CommitTS of the run's transaction.
	StartTS, CommitTS tso.Timestamp
}

// Trail follows a change back through the runs of observers that led to it, the
// last one first, for at most n runs. An observer's transaction has its
// acknowledgment as its primary, and every write record leads to its primary, so
// the way back is stored. It ends early at a change that no observer wrote, at a
// weak notification, which does not say who set it, and at versions that were
// garbage-collected.
func Trail(ctx context.Context, client *txn.Client, o *Observation, n int) ([]Hop, error) {
	c := access.Resolver(client)
	var hops []Hop
	for w := o.writer; len(hops) < n; {
		col, observer, ok := format.ObserverOf(w.Primary.Column())
		if !ok {
			break
		}
		cell := format.Cell{Table: w.Primary.Table, Row: w.Primary.Row, Family: col.Family, Qualifier: col.Qualifier}
		hops = append(hops, Hop{observer, cell, w.StartTS, w.CommitTS})
		t, err := c.Table(ctx, cell.Table)
		if err != nil {
			return hops, err
		}
		raw, err := t.ReadRow(ctx, cell.Row, store.Interleave(store.Chain(store.ExactColumn(format.WriteFamily, col.Key()), store.UpTo(w.StartTS), bigtable.LatestNFilter(1))))
		if err != nil {
			return hops, err
		}
		if len(raw[format.WriteFamily]) == 0 {
			break
		}
		item := raw[format.WriteFamily][0]
		if w, err = format.DecodeWrite(cell, tso.FromCell(item.Timestamp), item.Value); err != nil {
			return hops, err
		}
	}
	return hops, nil
}
