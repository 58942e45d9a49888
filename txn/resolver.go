package txn

import (
	"sync/atomic"
	"time"
)

// A resolverConfig configures a resolver; every field is set. Package txn's Config
// describes them and has the defaults.
type resolverConfig struct {
	TokenTTL  time.Duration
	PassLocks bool
}

// A resolver finds out the outcome of other clients' transactions and ends those whose
// clients are dead (paper §2.2).
type resolver struct {
	*store
	cfg   resolverConfig
	token *token
	holds *holds
	known *outcomeCache
	// onResolve is called after each cell that was resolved.
	onResolve atomic.Pointer[func(Resolution)]
}

func newResolver(s *store, cfg resolverConfig) *resolver {
	r := &resolver{store: s, cfg: cfg, holds: newHolds(), known: newOutcomeCache()}
	r.token = newToken(r)
	return r
}
