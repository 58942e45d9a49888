package admin

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// A Worker is a client as its worker token shows it.
type Worker struct {
	// Owner is the token: what the client writes into its locks.
	Owner string
	OwnerStatus
	// Observers that it runs; none if it only runs transactions.
	Observers []string
}

// Workers reads the tokens of all clients, the stale ones of those that died
// within the last hour too, and judges them by oracle time. A client that has
// written nothing yet, or writes no token, is not among them. A token that cannot
// be read is OwnerMissing.
func Workers(ctx context.Context, client *txn.Client) ([]Worker, error) {
	c := access.Resolver(client)
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	var workers []Worker
	err = c.MetadataRows(ctx, recovery.TokenRowPrefix, recovery.TokenQualifier, func(r bigtable.Row, _ []byte) (bool, error) {
		w := Worker{Owner: r.Key()[len(recovery.TokenRowPrefix):], OwnerStatus: OwnerStatus{State: OwnerMissing}}
		if t, ok := recovery.DecodeToken(r); ok {
			w.OwnerStatus, w.Observers = newOwnerStatus(t, now), t.Observers
		}
		workers = append(workers, w)
		return true, nil
	})
	return workers, err
}
