package changes

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// SetFailure stores an observer's failure on a cell, and replaces an earlier one.
// After an error it may be stored or not.
func SetFailure(ctx context.Context, client *txn.Client, cell format.Cell, observer string, f format.Failure) error {
	c := access.ResolverOf(client)
	if err := format.CheckCell(cell); err != nil {
		return err
	}
	if err := format.CheckObserver(observer); err != nil {
		return err
	}
	if err := c.Journal.Enter(ctx, journal.Entry{FailureTS: f.LastTS}, cell); err != nil {
		return err
	}
	m := bigtable.NewMutation()
	m.Set(format.NotifyFamily, format.FailureQualifier(observer, cell.Column()), 0, format.Marshal(&recordpb.Failure{
		FormatVersion: format.Version,
		ChangeTs:      int64(f.ChangeTS),
		Attempts:      uint32(f.Attempts),
		NotBeforeTs:   int64(f.NotBefore),
		FirstTs:       int64(f.FirstTS),
		LastTs:        int64(f.LastTS),
		Error:         format.ClipErrorText(f.Error),
	}))
	return c.Mutate(ctx, map[string][]store.RowMutation{cell.Table: {{Row: cell.Row, Mut: m, Ops: 1}}})
}
