package admin

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An OwnerState is the state of a client, as its worker token shows it.
type OwnerState string

// The states of a lock's owner.
const (
	// OwnerMissing: the lock names no token, because the client wrote none (Config.TokenTTL),
	// or this release cannot read it. The lock lives until its ttl ends.
	OwnerMissing OwnerState = "missing"
	// OwnerFresh: the token was renewed in time, so the client counts as alive.
	OwnerFresh OwnerState = "fresh"
	// OwnerStale: the token was not renewed in time, so the client counts as dead.
	// Any client may roll its locks back at once.
	OwnerStale OwnerState = "stale"
	// OwnerEnded: the client was closed, or died an hour ago, and its token was removed. As OwnerStale.
	OwnerEnded OwnerState = "ended"
)

// An OwnerStatus is what a client's worker token says. Without a token, only State is set.
type OwnerStatus struct {
	State OwnerState
	// ExpiresTS is the oracle time at which the token becomes or became stale.
	ExpiresTS tso.Timestamp
	// StartedTS is the oracle time at which the client wrote its first token.
	StartedTS tso.Timestamp
	// Host and PID name the client's process.
	Host string
	PID  int64
}

// Owner returns the token that client writes into its locks; empty if Config.TokenTTL is negative.
func Owner(client *txn.Client) string { return access.ResolverOf(client).Token.Name }

// ReadOwner reads the worker token of a lock's owner (Lock.Owner, which may be empty),
// and compares it with oracle time now, as [Resolve] does. It changes nothing.
func ReadOwner(ctx context.Context, client *txn.Client, owner string, now tso.Timestamp) (OwnerStatus, error) {
	return readOwner(ctx, access.ResolverOf(client), owner, now)
}

func readOwner(ctx context.Context, c *recovery.Resolver, owner string, now tso.Timestamp) (OwnerStatus, error) {
	s := OwnerStatus{State: OwnerMissing}
	if owner == "" {
		return s, nil
	}
	row, err := c.Metadata.ReadRow(ctx, recovery.TokenRowPrefix+owner, store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, recovery.TokenQualifier), bigtable.LatestNFilter(1))))
	if err != nil {
		return s, err
	}
	if w, ok := recovery.DecodeToken(row); ok {
		return newOwnerStatus(w, now), nil
	} else if row == nil {
		s.State = OwnerEnded
	}
	return s, nil
}

func newOwnerStatus(w *recordpb.WorkerToken, now tso.Timestamp) OwnerStatus {
	s := OwnerStatus{OwnerFresh, tso.Timestamp(w.ExpiresTs), tso.Timestamp(w.StartedTs), w.Host, w.Pid}
	if now >= s.ExpiresTS {
		s.State = OwnerStale
	}
	return s
}
