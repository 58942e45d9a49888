package admin

import (
	"context"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An OwnerState says what a worker token shows about the client that owns a
// lock.
type OwnerState string

// The states of a lock's owner.
const (
	// OwnerMissing: there is no token, or none that this library can read. That
	// says nothing: the client may write none (Config.TokenTTL), may have been
	// closed, or died more than an hour ago. Its locks live until their ttl.
	OwnerMissing OwnerState = "missing"
	// OwnerFresh: the token was renewed in time; the client is taken for alive.
	OwnerFresh OwnerState = "fresh"
	// OwnerStale: the token was not renewed in time; the client is taken for
	// dead, and its locks may be rolled back at once.
	OwnerStale OwnerState = "stale"
)

// An OwnerStatus is what a client's worker token says. All but State is zero
// in OwnerMissing.
type OwnerStatus struct {
	State OwnerState
	// ExpiresTS is the oracle time at which the token went or goes stale.
	ExpiresTS tso.Timestamp
	// StartedTS is when the client wrote its first token, in oracle time.
	StartedTS tso.Timestamp
	// Host and PID name the client's process.
	Host string
	PID  int64
}

// OwnerState reads the worker token of a lock's owner (Lock.Owner, which may be
// empty) and judges it at oracle time now, as Resolve does. It changes nothing.
func ReadOwner(ctx context.Context, client *txn.Client, owner string, now tso.Timestamp) (OwnerStatus, error) {
	c := access.Resolver(client)
	s := OwnerStatus{State: OwnerMissing}
	if owner == "" {
		return s, nil
	}
	row, err := c.Metadata.ReadRow(ctx, recovery.TokenRowPrefix+owner, store.Interleave(store.Chain(store.ExactColumn(store.DeployFamily, recovery.TokenQualifier), bigtable.LatestNFilter(1))))
	if err != nil {
		return s, err
	}
	w, ok := recovery.DecodeToken(row)
	if !ok {
		return s, nil
	}
	return newOwnerStatus(w, now), nil
}

func newOwnerStatus(w *recordpb.WorkerToken, now tso.Timestamp) OwnerStatus {
	s := OwnerStatus{OwnerFresh, tso.Timestamp(w.ExpiresTs), tso.Timestamp(w.StartedTs), w.Host, w.Pid}
	if now >= s.ExpiresTS {
		s.State = OwnerStale
	}
	return s
}
