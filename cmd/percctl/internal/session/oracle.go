package session

import (
	"context"
	"errors"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/cli"
	"github.com/percolator-bigtable/percolator/tso"
)

// servedOracle returns a client of the server that leads, when the deployment's
// oracle is in served mode, and nil when it is in direct mode, which needs none.
func servedOracle(ctx context.Context, bt *bigtable.Client, metadataTable string) (*tso.Client, error) {
	state, err := tso.ReadRow(ctx, bt.OpenTable(metadataTable), tso.RowConfig{})
	switch {
	case errors.Is(err, tso.ErrNotInitialized):
		return nil, nil // txn.NewClient words that
	case err != nil:
		return nil, err
	case state.Mode != tso.ModeServed:
		return nil, nil
	case state.Address == "":
		return nil, &cli.Error{Code: cli.ExitUnavailable, Err: errors.New("the oracle is in served mode and no server leads: start one with percctl tso serve, or see percctl tso mode")}
	}
	return tso.NewClient(tso.ClientConfig{Addresses: []string{state.Address}})
}
