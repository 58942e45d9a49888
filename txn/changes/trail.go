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
	// Cell is the observed cell that triggered the run.
	Cell format.Cell
	// StartTS and CommitTS are those of the run's transaction.
	StartTS, CommitTS tso.Timestamp
}

// Trail returns the runs of observers that led to a change, the last one first, at
// most n of them. Every write record names its primary, and the primary of an
// observer's transaction is its acknowledgment, so the stored cells lead back. The
// trail is shorter if it reaches a change that no observer wrote, a weak
// notification (which does not name its transaction), or a collected version.
// After an error it returns the part that it read.
func Trail(ctx context.Context, client *txn.Client, o *Observation, n int) ([]Hop, error) {
	c := access.ResolverOf(client)
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
