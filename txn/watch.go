package txn

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso"
)

// WatchNotifications has f called with each cell that this client has notified,
// once its notify cell is there: by a commit, by rolling another client's commit
// forward, or by Notify. f reports whether it takes care of the cell, and has to
// return at once. Call stop to end it; f may still be running then.
func WatchNotifications(client *Client, f func(Cell) (taken bool)) (stop func()) {
	c := resolverOf(client)
	return c.hints.watch(f)
}

// SubscribeNotifications has f called with cells of the columns that other
// processes have notified and hinted, until ctx ends. Each hint comes to one of
// all subscribers, so f should take care of it. Where the oracle carries no
// hints it returns nil at once.
func SubscribeNotifications(ctx context.Context, client *Client, columns []ObservedColumn, f func(Cell)) error {
	c := resolverOf(client)
	byTable := map[string][]Column{}
	for _, col := range columns {
		byTable[col.Table] = append(byTable[col.Table], col.Column)
	}
	return c.hints.subscribe(ctx, byTable, f)
}

// OracleNow estimates the oracle's time from the last timestamp that this client
// was given, without asking for one. It is for deciding when to look at
// something again, and never for what has to be right. 0: none was given yet.
func OracleNow(client *Client) tso.Timestamp {
	c := resolverOf(client)
	return c.clock.now()
}

// AdvisoryLocks returns the deployment's advisory locks: the timestamp
// service's, where the client's oracle is one, or else locks in the metadata
// table. cheap says that taking one costs no request to Bigtable.
func AdvisoryLocks(client *Client) (locks tso.Locks, cheap bool, err error) {
	c := resolverOf(client)
	if served, ok := c.clock.oracle.(interface{ Locks() tso.Locks }); ok {
		return served.Locks(), true, nil
	}
	locks, err = tso.NewRowLocks(c.metadata.api, tso.RowLocksConfig{Oracle: c.clock.oracle, Family: oracleFamily, RPCTimeout: c.store.cfg.RPCTimeout})
	return locks, false, err
}

// Announce says in this client's worker token which observers it runs, and
// writes the token if it is not there yet. Without a token (Config.TokenTTL) it
// does nothing.
func Announce(ctx context.Context, client *Client, observers []string) error {
	c := resolverOf(client)
	return c.token.announce(ctx, observers)
}

// SampleRowKeys returns keys that cut a table into pieces of about equal size, as
// Bigtable's tablets do; there may be none.
func SampleRowKeys(ctx context.Context, client *Client, name string) ([]string, error) {
	c := resolverOf(client)
	t, err := c.table(ctx, name)
	if err != nil {
		return nil, err
	}
	rctx, cancel := t.timeout(ctx)
	defer cancel()
	keys, err := t.api.SampleRowKeys(rctx)
	return keys, wrapRPC(ctx, "sample of row keys", name, err)
}
