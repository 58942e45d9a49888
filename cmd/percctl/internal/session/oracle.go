package session

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/admin"
)

// ServedOracle returns the deployment's oracle if it is in served mode, and nil if it is in direct
// mode, which needs none. It has to be closed.
func ServedOracle(ctx context.Context, at *connect.Flags, bt *bigtable.Client) (*admin.Oracle, error) {
	table := bt.OpenTable(at.MetadataTable)
	state, err := tso.ReadRow(ctx, table, tso.RowConfig{})
	if errors.Is(err, tso.ErrNotInitialized) {
		return nil, nil // txn.NewClient words that
	}
	if err != nil || state.Mode != tso.ModeServed {
		return nil, err
	}
	return &admin.Oracle{Table: table, Servers: Servers(at)}, nil
}

// Servers connects to the servers that the flags name, or to the leader that a row names. It returns
// nil if there is neither.
func Servers(at *connect.Flags) func(tso.RowState) (*tso.Client, error) {
	return func(row tso.RowState) (*tso.Client, error) {
		if row.Address == "" && at.Oracle.Servers == "" {
			return nil, nil
		}
		return at.Oracle.Client(row.Address)
	}
}

// Now is the oracle's time, for ages. While the oracle gives no timestamps, it is this machine's.
func (s *Session) Now(ctx context.Context) (tso.Timestamp, error) {
	if s.Served != nil {
		return s.Served.Now(ctx)
	}
	return s.Client().Timestamp(ctx)
}
