package changes

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// WatchNotifications has f called with each cell that this client has notified,
// once its notify cell is there: by a commit, by rolling another client's commit
// forward, or by Notify. f reports whether it takes care of the cell, and has to
// return at once. Call stop to end it; f may still be running then.
func WatchNotifications(client *txn.Client, f func(format.Cell) (taken bool)) (stop func()) {
	c := access.Resolver(client)
	return c.Hints.Watch(f)
}

// SubscribeNotifications has f called with cells of the columns that other
// processes have notified and hinted, until ctx ends. Each hint comes to one of
// all subscribers, so f should take care of it. Where the oracle carries no
// hints it returns nil at once.
func SubscribeNotifications(ctx context.Context, client *txn.Client, columns []Registration, f func(format.Cell)) error {
	c := access.Resolver(client)
	byTable := map[string][]format.Column{}
	for _, col := range columns {
		byTable[col.Table] = append(byTable[col.Table], col.Column)
	}
	return c.Hints.Subscribe(ctx, byTable, f)
}

// OracleNow estimates the oracle's time from the last timestamp that this client
// was given, without asking for one. It is for deciding when to look at
// something again, and never for what has to be right. 0: none was given yet.
func OracleNow(client *txn.Client) tso.Timestamp {
	c := access.Resolver(client)
	return c.Clock.Now()
}

// AdvisoryLocks returns the deployment's advisory locks: the timestamp
// service's, where the client's oracle is one, or else locks in the metadata
// table. cheap says that taking one costs no request to Bigtable.
func AdvisoryLocks(client *txn.Client) (locks tso.Locks, cheap bool, err error) {
	c := access.Resolver(client)
	if served, ok := c.Clock.Oracle.(interface{ Locks() tso.Locks }); ok {
		return served.Locks(), true, nil
	}
	locks, err = tso.NewRowLocks(c.Metadata.API, tso.RowLocksConfig{Oracle: c.Clock.Oracle, Family: store.OracleFamily, RPCTimeout: c.Store.Config.RPCTimeout})
	return locks, false, err
}

// Announce says in this client's worker token which observers it runs, and
// writes the token if it is not there yet. Without a token (Config.TokenTTL) it
// does nothing.
func Announce(ctx context.Context, client *txn.Client, observers []string) error {
	c := access.Resolver(client)
	return c.Token.Announce(ctx, observers)
}

// SampleRowKeys returns keys that cut a table into pieces of about equal size, as
// Bigtable's tablets do; there may be none.
func SampleRowKeys(ctx context.Context, client *txn.Client, name string) ([]string, error) {
	c := access.Resolver(client)
	t, err := c.Table(ctx, name)
	if err != nil {
		return nil, err
	}
	rctx, cancel := t.Timeout(ctx)
	defer cancel()
	keys, err := t.API.SampleRowKeys(rctx)
	return keys, store.WrapRPC(ctx, "sample of row keys", name, err)
}
