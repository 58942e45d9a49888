package txn

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
)

// SetFailure stores an observer's failure on a cell, in place of what is
// stored. On an error it may be stored or not.
func SetFailure(ctx context.Context, client *Client, cell Cell, observer string, f Failure) error {
	c := resolverOf(client)
	if err := checkCell(cell); err != nil {
		return err
	}
	if err := checkObserver(observer); err != nil {
		return err
	}
	m := bigtable.NewMutation()
	m.Set(NotifyFamily, failureQualifier(observer, cell.Column()), 0, marshal(&recordpb.Failure{
		FormatVersion: FormatVersion,
		ChangeTs:      int64(f.ChangeTS),
		Attempts:      uint32(f.Attempts),
		NotBeforeTs:   int64(f.NotBefore),
		FirstTs:       int64(f.FirstTS),
		LastTs:        int64(f.LastTS),
		Error:         clip(f.Error),
	}))
	return c.mutate(ctx, map[string][]rowMutation{cell.Table: {{row: cell.Row, mut: m, ops: 1}}})
}
