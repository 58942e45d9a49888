package admin

import (
	"context"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
)

// A Worker is a client, as its worker token shows it.
type Worker struct {
	// Owner is the id of the client, which its locks contain.
	Owner string
	OwnerStatus
	// Observers are the observers that it runs; none if it only runs transactions.
	Observers []string
	// SchemaMaxAge is the client's Config.SchemaMaxAge; 0: it comes from a release that writes no
	// journal entries.
	SchemaMaxAge time.Duration
}

// Workers reads the worker tokens of all clients, and compares them with the oracle's
// present time. It also returns clients that died within the last hour. It does not
// return clients that have written nothing yet or that write no token. A client
// whose token cannot be read is OwnerMissing.
func Workers(ctx context.Context, client *txn.Client) ([]Worker, error) {
	c := access.ResolverOf(client)
	now, err := c.Clock.Timestamp(ctx)
	if err != nil {
		return nil, err
	}
	var workers []Worker
	err = c.MetadataRows(ctx, recovery.TokenRowPrefix, recovery.TokenQualifier, func(r bigtable.Row, _ []byte) (bool, error) {
		w := Worker{Owner: r.Key()[len(recovery.TokenRowPrefix):], OwnerStatus: OwnerStatus{State: OwnerMissing}}
		if t, ok := recovery.DecodeToken(r); ok {
			w.OwnerStatus, w.Observers = newOwnerStatus(t, now), t.Observers
			w.SchemaMaxAge = time.Duration(t.SchemaMaxAgeMicros) * time.Microsecond
		}
		workers = append(workers, w)
		return true, nil
	})
	return workers, err
}
