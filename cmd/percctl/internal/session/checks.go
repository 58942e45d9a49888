package session

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/checks"
	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
)

// NewCheckEnv makes of a bare session what checks look at: as much as there is,
// for what is missing is what they are to tell. It fails only when Bigtable
// does not answer. Call the function it returns when done.
func NewCheckEnv(ctx context.Context, s *Session, rows int) (env *checks.Env, end func(), err error) {
	env = &checks.Env{At: s.Connect, Bigtable: s.Bigtable, Admin: s.Admin, Rows: rows}
	var closers []func()
	end = func() {
		for _, c := range closers {
			c()
		}
	}
	env.Oracle, env.OracleErr = tso.ReadRow(ctx, s.Bigtable.OpenTable(s.Connect.MetadataTable), tso.RowConfig{})
	switch status.Code(env.OracleErr) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated:
		return nil, end, env.OracleErr
	}
	if errors.Is(env.OracleErr, context.DeadlineExceeded) || errors.Is(env.OracleErr, context.Canceled) {
		return nil, end, env.OracleErr
	}
	cfg := txn.Config{MetadataTable: s.Connect.MetadataTable, TokenTTL: -1}
	served, err := ServedOracle(ctx, s.Connect, s.Bigtable)
	if err == nil && served != nil {
		closers = append(closers, func() { _ = served.Close() })
		cfg.Oracle = served
	}
	if err == nil {
		if env.Client, err = txn.NewClient(ctx, s.Bigtable, cfg); err == nil {
			closers = append([]func(){func() {
				cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
				defer cancel()
				_ = env.Client.Close(cctx) // it committed nothing
			}}, closers...)
		}
	}
	env.NoClient = err
	return env, end, nil
}
