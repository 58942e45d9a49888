package recovery

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The place of worker tokens in the metadata table: a row for each client, and a column of
// store.DeployFamily.
const (
	TokenRowPrefix = "worker/"
	TokenQualifier = "token"
)

// The place of the claims of package settled: a row for each number, in the same family. Clients
// write them with their tokens.
const (
	SettledRowPrefix = "settled/"
	SettledQualifier = "ts"
)

// staleTokenAge is how long the token of a crashed client stays in the metadata table.
// Its locks expired long before.
const staleTokenAge = time.Hour

// idleRenewal is how often an idle client renews its token. The token lasts longer by that.
const idleRenewal = 30 * time.Second

// A Token is this client's worker token: its sign of life in the metadata table. It also
// remembers the tokens of other clients that this client read.
//
// In the paper (§2.2), workers write a token into the lock service, and a lock whose owner
// has no token may be cleaned up. Here, tokens are advisory: a wrong judgment costs a live
// transaction a retry and nothing else. Locks of clients that write no token name no owner, and
// live until their ttl ends.
//
// A client is idle if it has no open transaction and no commit under way, and if the last commit
// began at least a third of Config.TokenTTL ago. It has no locks that a token could keep alive or
// give up early, so its token is written seldom, and lasts long.
type Token struct {
	resolver *Resolver
	Name     string // empty when Config.TokenTTL is negative

	writing chan struct{} // contains a value while the token is written

	mu       sync.Mutex
	starting chan struct{} // closed when the first write has ended; nil if none is under way
	started  tso.Timestamp // oracle time of the first write
	running  bool          // the token is written, and renew runs
	closed   bool
	retryAt  time.Time // no first write before this time, because one failed
	stop     context.CancelFunc
	stopped  chan struct{} // closed when renew has ended
	used     time.Time     // when the last commit began
	renewed  time.Time     // when the last write of the token began
	failed   bool          // that write
	long     bool          // the token is an idle client's
	holds    bool          // the token contains a hold that is older than Config.TokenTTL
	wake     chan struct{} // the client is not idle any more
	// expiries holds the oracle times at which other clients' tokens become stale, by
	// token, as this client last read them.
	expiries map[string]tso.Timestamp
	// observers are the ids of the observers that this client runs.
	observers []string
	claimed   tso.Timestamp // what was stored last of the client's claim
}

func newToken(r *Resolver) *Token {
	t := &Token{resolver: r, writing: make(chan struct{}, 1), wake: make(chan struct{}, 1), expiries: map[string]tso.Timestamp{}}
	if r.Config.TokenTTL > 0 {
		t.Name = rand.Text()
	}
	return t
}

// Begin says that a commit begins. It writes the token before the client's first prewrite.
func (t *Token) Begin(ctx context.Context) {
	t.mu.Lock()
	t.used = time.Now()
	if t.running && (t.long || time.Since(t.renewed) > t.resolver.Config.TokenTTL/3) {
		t.long, t.renewed = false, t.used
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	t.mu.Unlock()
	t.Ensure(ctx)
}

// Ensure writes the token if that has not been done yet, and keeps it fresh until Close. A failure does not keep the client from committing: its locks still have their
// ttl. Ensure tries again after Config.TokenTTL.
func (t *Token) Ensure(ctx context.Context) {
	t.mu.Lock()
	if t.Name == "" || t.running || t.closed || time.Now().Before(t.retryAt) {
		t.mu.Unlock()
		return
	}
	if t.starting == nil {
		t.starting = make(chan struct{})
		// The token outlives the transaction that needs it first, so it is not a part of that
		// transaction's trace.
		go t.start(telemetry.Untraced, t.starting)
	}
	starting := t.starting
	t.mu.Unlock()
	select {
	case <-starting:
	case <-ctx.Done():
	}
}

// start writes the token for the first time and begins to renew it.
func (t *Token) start(ctx context.Context, done chan struct{}) {
	defer close(done)
	wctx, cancel := context.WithTimeout(ctx, t.resolver.Config.TokenTTL)
	defer cancel()
	started, err := t.now(wctx)
	if err == nil {
		t.mu.Lock()
		t.started = started
		t.mu.Unlock()
		err = t.write(wctx, started)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.starting = nil
	switch {
	case err != nil:
		t.retryAt = time.Now().Add(t.resolver.Config.TokenTTL)
		t.resolver.Log.WarnContext(ctx, "writing the worker token failed; only the locks' ttl shows that this client is alive", "owner", t.Name, "error", err)
	case !t.closed:
		t.running = true
		var rctx context.Context
		rctx, t.stop = context.WithCancel(ctx)
		t.stopped = make(chan struct{})
		go t.renew(rctx)
	}
}

// now returns the oracle's time. It asks the oracle if the last answer is so old that the
// estimate may be off: other clients would take a token that is too early for stale.
func (t *Token) now(ctx context.Context) (tso.Timestamp, error) {
	if _, _, ok := t.resolver.Clock.ReadableWithin(t.resolver.Config.TokenTTL); ok || t.idle() {
		if now := t.resolver.Clock.Now(); now != 0 {
			return now, nil
		}
	}
	return t.resolver.Clock.Timestamp(ctx)
}

// idle reports whether the client has no locks, as far as it knows: a transaction is open until
// its commit has ended.
func (t *Token) idle() bool {
	open := t.resolver.Holds.Any()
	t.mu.Lock()
	defer t.mu.Unlock()
	return !open && time.Since(t.used) >= t.resolver.Config.TokenTTL/3
}

// write writes the token, with the oldest hold of this moment. It goes stale
// Config.TokenTTL after now, or later if the client is idle.
func (t *Token) write(ctx context.Context, now tso.Timestamp) error {
	// One write at a time. Otherwise a slow renewal could overwrite a newer hold.
	select {
	case t.writing <- struct{}{}:
		defer func() { <-t.writing }()
	case <-ctx.Done():
		return store.Ended(ctx, "waiting to write the worker token", nil)
	}
	host, _ := os.Hostname()
	lasts := t.resolver.Config.TokenTTL
	idle := t.idle()
	if idle {
		lasts += idleRenewal
	}
	t.mu.Lock()
	started, observers := t.started, t.observers
	t.mu.Unlock()
	oldest, since := t.resolver.Holds.oldest()
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, TokenQualifier, 0, format.Marshal(&recordpb.WorkerToken{
		FormatVersion:      format.Version,
		ExpiresTs:          int64(now) + lasts.Microseconds(),
		StartedTs:          int64(started),
		Host:               host,
		Pid:                int64(os.Getpid()),
		Observers:          observers,
		SchemaMaxAgeMicros: max(t.resolver.Store.Config.SchemaMaxAge.Microseconds(), 1),
		OldestTs:           int64(oldest),
	}))
	began := time.Now()
	err := t.apply(ctx, m, oldest)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.renewed, t.failed = began, err != nil; !t.failed {
		t.long, t.holds = idle, oldest != 0 && time.Since(since) > t.resolver.Config.TokenTTL
	}
	return err
}

// apply changes the token, and writes the client's claim in the same request if it has grown. held
// is the client's oldest hold.
func (t *Token) apply(ctx context.Context, token *bigtable.Mutation, held tso.Timestamp) error {
	muts := []store.RowMutation{{Row: TokenRowPrefix + t.Name, Mut: token, Ops: 1}}
	number, claim := t.resolver.Claims.Next(held)
	t.mu.Lock()
	grown := claim > t.claimed
	t.mu.Unlock()
	if grown {
		m := bigtable.NewMutation()
		m.Set(store.DeployFamily, SettledQualifier, 0, format.Marshal(&recordpb.Settled{FormatVersion: format.Version, Ts: int64(claim)}))
		muts = append(muts, store.RowMutation{Row: fmt.Sprintf("%s%016x", SettledRowPrefix, number), Mut: m, Ops: 1})
	}
	_, err := t.resolver.Metadata.Apply(ctx, muts)
	if err == nil && grown {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.claimed = claim
	}
	return err
}

// renew writes the token three times in Config.TokenTTL while a transaction is open, or every
// idleRenewal while the client is idle, until ctx ends.
func (t *Token) renew(ctx context.Context) {
	defer close(t.stopped)
	t.removeDeadTokens(ctx, t.started)
	tick := time.NewTicker(t.resolver.Config.TokenTTL / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if !t.due() {
				continue
			}
		case <-t.wake:
			tick.Reset(t.resolver.Config.TokenTTL / 3)
		}
		err := t.renewOnce(ctx)
		if err != nil && ctx.Err() == nil {
			t.resolver.Log.WarnContext(ctx, "renewing the worker token failed", "owner", t.Name, "error", err)
		}
	}
}

// due reports whether to write the token, at each third of Config.TokenTTL. Without an open
// transaction every second time is left out: the next commit writes the token if it begins later
// (Begin). Otherwise a client that commits now and then would write it more often than it commits.
// A hold that has ended goes out of the token soon.
func (t *Token) due() bool {
	open := t.resolver.Holds.Any()
	t.mu.Lock()
	defer t.mu.Unlock()
	lasts := t.resolver.Config.TokenTTL / 2
	if t.long {
		lasts = idleRenewal
	}
	return open || t.failed || t.holds || time.Since(t.renewed) >= lasts
}

// renewOnce ends early enough for the next try. Otherwise one request that hangs could make
// the client look dead.
func (t *Token) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.resolver.Config.TokenTTL/3)
	defer cancel()
	now, err := t.now(ctx)
	if err != nil {
		return err
	}
	return t.write(ctx, now)
}

// Publish makes sure that the stored token contains the current holds.
func (t *Token) Publish(ctx context.Context) error {
	if t.Name == "" {
		return format.Invalidf("Hold needs a worker token, but Config.TokenTTL is negative, so this client has none")
	}
	t.Ensure(ctx)
	now, err := t.now(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	running := t.running && !t.closed
	t.mu.Unlock()
	switch {
	case !running && ctx.Err() != nil:
		return store.Ended(ctx, "percolator: Hold: writing the worker token", nil)
	case !running:
		return fmt.Errorf("percolator: Hold: the client could not write its worker token to table %q, and without it nothing holds garbage collection back; try again in %v", t.resolver.Metadata.Name, t.resolver.Config.TokenTTL)
	}
	return t.write(ctx, now)
}

// removeDeadTokens removes the tokens of clients that died at least staleTokenAge ago.
func (t *Token) removeDeadTokens(ctx context.Context, now tso.Timestamp) {
	ctx, cancel := context.WithTimeout(ctx, t.resolver.Config.TokenTTL/3) // as long as a renewal: one is due after that
	defer cancel()
	var dead []store.RowMutation
	err := t.resolver.Metadata.ReadRows(ctx, bigtable.PrefixRange(TokenRowPrefix), func(r bigtable.Row) bool {
		if w, ok := DecodeToken(r); ok && tso.Timestamp(w.ExpiresTs) < now.Add(-staleTokenAge) {
			m := bigtable.NewMutation()
			m.DeleteCellsInColumn(store.DeployFamily, TokenQualifier)
			dead = append(dead, store.RowMutation{Row: r.Key(), Mut: m, Ops: 1})
		}
		return true
	}, bigtable.RowFilter(store.Interleave(store.ExactColumn(store.DeployFamily, TokenQualifier))))
	if err == nil && len(dead) > 0 {
		_, err = t.resolver.Metadata.Apply(ctx, dead)
	}
	if err != nil && ctx.Err() == nil {
		t.resolver.Log.DebugContext(ctx, "removing stale worker tokens failed", "error", err)
	}
}

// DecodeToken reads a worker token from its row in the metadata table. ok is false if there
// is none, or if it does not parse or has another format version.
func DecodeToken(r bigtable.Row) (*recordpb.WorkerToken, bool) {
	if len(r[store.DeployFamily]) == 0 {
		return nil, false
	}
	var w recordpb.WorkerToken
	err := proto.Unmarshal(r[store.DeployFamily][0].Value, &w)
	return &w, err == nil && w.FormatVersion == format.Version
}

// Owner is what the client's locks name as their owner: its token, once that is stored. So if a lock
// names a token that is not stored any more, a client removed it after the lock was written: the
// owner, which was closed, or another client, an hour after the token was stale.
func (t *Token) Owner() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.running {
		return ""
	}
	return t.Name
}

// isDead reports whether the worker token of a lock's owner was not renewed in time, or was
// removed. The lock was read before.
func (t *Token) isDead(ctx context.Context, owner string, now tso.Timestamp) bool {
	if owner == "" || owner == t.Name {
		return false
	}
	t.mu.Lock()
	expires, known := t.expiries[owner]
	t.mu.Unlock()
	if known && now < expires {
		return false // it was fresh when last read, and must still be
	}
	row, err := t.resolver.Metadata.TryReadRow(ctx, TokenRowPrefix+owner, store.Interleave(store.ExactColumn(store.DeployFamily, TokenQualifier)))
	if err != nil {
		return false
	}
	if row == nil {
		return true
	}
	w, ok := DecodeToken(row)
	if !ok {
		return false
	}
	expires = tso.Timestamp(w.ExpiresTs)
	t.mu.Lock()
	if len(t.expiries) >= outcomeCacheSize {
		clear(t.expiries)
	}
	t.expiries[owner] = expires
	t.mu.Unlock()
	return now >= expires
}

// Close stops renewing the token and removes it. By then this client's transactions have
// ended, and locks that are left have their ttl.
func (t *Token) Close(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	starting, running := t.starting, t.running
	t.mu.Unlock()
	if starting != nil {
		<-starting // bounded by Config.TokenTTL
	}
	if running {
		t.stop()
		<-t.stopped
	}
	if starting == nil && !running {
		return
	}
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn(store.DeployFamily, TokenQualifier)
	if err := t.apply(ctx, m, 0); err != nil {
		t.resolver.Log.WarnContext(ctx, "removing the worker token failed; it goes stale by itself", "owner", t.Name, "error", err)
	}
}

// Announce says which observers this client runs. It writes the token if that has not been
// done yet.
func (t *Token) Announce(ctx context.Context, observers []string) error {
	t.mu.Lock()
	t.observers = observers
	running := t.running
	t.retryAt = time.Time{}
	t.mu.Unlock()
	if !running {
		t.Ensure(ctx)
		return ctx.Err()
	}
	return t.renewOnce(ctx)
}
