package session

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/connect"
	"github.com/percolator-bigtable/percolator/tso"
)

// ServedOracle returns a client of the servers, when the deployment's oracle is
// in served mode, and nil when it is in direct mode, which needs none.
func ServedOracle(ctx context.Context, at *connect.Flags, bt *bigtable.Client) (*tso.Client, error) {
	state, err := tso.ReadRow(ctx, bt.OpenTable(at.MetadataTable), tso.RowConfig{})
	if errors.Is(err, tso.ErrNotInitialized) {
		return nil, nil // txn.NewClient words that
	}
	if err != nil || state.Mode != tso.ModeServed {
		return nil, err
	}
	return Servers(at, state)
}

// Servers returns a client of the servers of an oracle whose row is in served mode.
func Servers(at *connect.Flags, row tso.RowState) (*tso.Client, error) {
	if row.Address == "" && at.Oracle.Servers == "" {
		return nil, &cli.Error{Code: cli.ExitUnavailable, Err: errors.New("the oracle is in served mode and no server leads: start one with percctl tso serve, or return to direct mode with percctl tso mode direct")}
	}
	return at.Oracle.Client(row.Address)
}
