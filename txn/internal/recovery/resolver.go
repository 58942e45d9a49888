package recovery

import (
	"sync/atomic"
	"time"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// A resolverConfig configures a resolver; every field is set. Package txn's Config
// describes them and has the defaults.
type Config struct {
	TokenTTL  time.Duration
	PassLocks bool
}

// A resolver finds out the outcome of other clients' transactions and ends those whose
// clients are dead (paper §2.2).
type Resolver struct {
	*store.Store
	Config Config
	Token  *token
	Holds  *holds
	Known  *outcomeCache
	// OnResolve is called after each cell that was resolved.
	OnResolve atomic.Pointer[func(format.Resolution)]
}

func New(s *store.Store, cfg Config) *Resolver {
	r := &Resolver{Store: s, Config: cfg, Holds: newHolds(), Known: newOutcomeCache()}
	r.Token = newToken(r)
	return r
}
