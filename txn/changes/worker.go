package changes

import (
	"context"
	"fmt"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// OracleNow estimates the oracle's time from the last timestamp that this client
// was given. It makes no request. Use it to decide when to read something again,
// and never where correctness depends on it. It is 0 before the first timestamp.
func OracleNow(client *txn.Client) tso.Timestamp {
	c := access.ResolverOf(client)
	return c.Clock.Now()
}

// AdvisoryLocks returns the deployment's advisory locks, which are rows of the metadata
// table.
func AdvisoryLocks(client *txn.Client) *tso.RowLocks {
	c := access.ResolverOf(client)
	return tso.NewRowLocks(c.Metadata.API, c.Clock.Oracle, tso.RowLocksConfig{Family: store.OracleFamily, RPCTimeout: c.Store.Config.RPCTimeout})
}

// Announce writes the ids of the observers that this client runs into its worker
// token. It creates the token if there is none yet. If the client writes no token
// (Config.TokenTTL), it does nothing.
func Announce(ctx context.Context, client *txn.Client, observers []string) error {
	c := access.ResolverOf(client)
	return c.Token.Announce(ctx, observers)
}

// CheckLasting fails with txn.ErrSchema if the values of a family expire. It is for records that
// are wrong without each other, or without what they say of the past.
func CheckLasting(ctx context.Context, client *txn.Client, table, family string) error {
	t, err := access.ResolverOf(client).Table(ctx, table)
	if err != nil {
		return err
	}
	if x := t.Schema.Expiries()[family]; x.After > 0 {
		return fmt.Errorf("changes: table %q: %w: the values of family %q expire after %v, and these have to last; remove the expiry (admin.SetExpiry, percctl table expire), or use another family", table, txn.ErrSchema, family, format.Micros(int64(x.After)))
	}
	return nil
}

// SampleRowKeys returns row keys that divide a table into parts of about equal
// size, as Bigtable's tablets do. There may be none.
func SampleRowKeys(ctx context.Context, client *txn.Client, table string) ([]string, error) {
	c := access.ResolverOf(client)
	t, err := c.Table(ctx, table)
	if err != nil {
		return nil, err
	}
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	keys, err := t.API.SampleRowKeys(rctx)
	return keys, store.WrapRPC(ctx, "sample of row keys", table, err)
}
