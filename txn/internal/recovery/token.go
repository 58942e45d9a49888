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

const (
	TokenRowPrefix = "worker/"
	TokenQualifier = "token"
	// staleTokenAge is how long the token of a crashed client stays in the
	// metadata table. Its locks are far past their ttl by then.
	staleTokenAge = time.Hour
)

// Token is this client's sign of life in the metadata table, and what it knows
// of those of others (paper §2.2: workers write a token into the lock service;
// a lock whose owner's token is gone may be cleaned up). Tokens are advisory:
// to misjudge one costs a live transaction a retry and nothing else. A missing
// token says nothing, so that locks of clients that write none live until
// their ttl.
type Token struct {
	resolver *Resolver
	Name     string // empty when Config.TokenTTL is negative

	writing sync.Mutex // held while the token is written

	mu       sync.Mutex
	starting chan struct{} // closed when the attempt under way has ended; nil without one
	started  tso.Timestamp // when the token was written first
	running  bool          // the token is written and being renewed
	closed   bool
	retryAt  time.Time // after a failed attempt
	stop     context.CancelFunc
	stopped  chan struct{}
	// expiries holds until when tokens that were read lately are good.
	expiries map[string]tso.Timestamp
	// observers are announced in it.
	observers []string
}

func newToken(r *Resolver) *Token {
	t := &Token{resolver: r, expiries: map[string]tso.Timestamp{}}
	if r.Config.TokenTTL > 0 {
		t.Name = rand.Text()
	}
	return t
}

// Ensure writes the token before the client's first prewrite and keeps it
// fresh until close. Failure is no reason not to commit: the locks' ttl
// remains, and another attempt is made after Config.TokenTTL.
func (t *Token) Ensure(ctx context.Context) {
	t.mu.Lock()
	if t.Name == "" || t.running || t.closed || time.Now().Before(t.retryAt) {
		t.mu.Unlock()
		return
	}
	if t.starting == nil {
		t.starting = make(chan struct{})
		// The token outlives the transaction that is the first to need it, and is no
		// part of its trace.
		go t.start(telemetry.Untraced, t.starting)
	}
	starting := t.starting
	t.mu.Unlock()
	select {
	case <-starting:
	case <-ctx.Done():
	}
}

func (t *Token) start(ctx context.Context, done chan struct{}) {
	defer close(done)
	wctx, cancel := context.WithTimeout(ctx, t.resolver.Config.TokenTTL)
	defer cancel()
	started, err := t.resolver.Clock.Timestamp(wctx)
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

func (t *Token) write(ctx context.Context, now tso.Timestamp) error {
	// One at a time: a renewal must not take back what a hold has just announced.
	t.writing.Lock()
	defer t.writing.Unlock()
	host, _ := os.Hostname()
	t.mu.Lock()
	started, observers := t.started, t.observers
	t.mu.Unlock()
	oldest, _ := t.resolver.Holds.oldest()
	m := bigtable.NewMutation()
	m.Set(store.DeployFamily, TokenQualifier, 0, format.Marshal(&recordpb.WorkerToken{
		FormatVersion: format.Version,
		ExpiresTs:     int64(now) + t.resolver.Config.TokenTTL.Microseconds(),
		StartedTs:     int64(started),
		Host:          host,
		Pid:           int64(os.Getpid()),
		Observers:     observers,
		OldestTs:      int64(oldest),
	}))
	_, err := t.resolver.Metadata.Apply(ctx, []store.RowMutation{{Row: TokenRowPrefix + t.Name, Mut: m, Ops: 1}})
	return err
}

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
		}
		err := t.renewOnce(ctx)
		if err != nil && ctx.Err() == nil {
			t.resolver.Log.WarnContext(ctx, "renewing the worker token failed", "owner", t.Name, "error", err)
		}
	}
}

// renewOnce gives up in time for the next try: one request that hangs must not
// make the client look dead.
func (t *Token) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.resolver.Config.TokenTTL/3)
	defer cancel()
	now, err := t.resolver.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	return t.write(ctx, now)
}

// Publish makes sure that the token says what is held now.
func (t *Token) Publish(ctx context.Context) error {
	if t.Name == "" {
		return format.Invalidf("Hold needs a worker token; Config.TokenTTL is negative")
	}
	t.Ensure(ctx)
	now, err := t.resolver.Clock.Timestamp(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	running := t.running && !t.closed
	t.mu.Unlock()
	if !running {
		return fmt.Errorf("txn: the worker token of this client could not be written, and without it nothing holds garbage collection back; try again in %v", t.resolver.Config.TokenTTL)
	}
	return t.write(ctx, now)
}

// removeDeadTokens removes the tokens of clients that died long ago.
func (t *Token) removeDeadTokens(ctx context.Context, now tso.Timestamp) {
	var dead []store.RowMutation
	err := t.resolver.Metadata.ReadRows(ctx, bigtable.PrefixRange(TokenRowPrefix), func(r bigtable.Row) bool {
		if w, ok := DecodeToken(r); ok && tso.Timestamp(w.ExpiresTs) < now-tso.Timestamp(staleTokenAge.Microseconds()) {
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
		t.resolver.Log.DebugContext(ctx, "sweeping stale worker tokens failed", "error", err)
	}
}

func DecodeToken(r bigtable.Row) (*recordpb.WorkerToken, bool) {
	if len(r[store.DeployFamily]) == 0 {
		return nil, false
	}
	var w recordpb.WorkerToken
	err := proto.Unmarshal(r[store.DeployFamily][0].Value, &w)
	return &w, err == nil && w.FormatVersion == format.Version
}

// isStale reports whether owner's token was there and has not been renewed in
// time.
func (t *Token) isStale(ctx context.Context, owner string, now tso.Timestamp) bool {
	if owner == "" || owner == t.Name {
		return false
	}
	t.mu.Lock()
	expires, known := t.expiries[owner]
	t.mu.Unlock()
	if known && now < expires {
		return false // it was fresh when last read, and still is
	}
	row, err := t.resolver.Metadata.ReadRow(ctx, TokenRowPrefix+owner, store.Interleave(store.ExactColumn(store.DeployFamily, TokenQualifier)))
	if err != nil {
		return false
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

// Close ends the renewal and removes the token: every lock of this client is
// settled by then, or is left to its ttl.
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
	if _, err := t.resolver.Metadata.Apply(ctx, []store.RowMutation{{Row: TokenRowPrefix + t.Name, Mut: m, Ops: 1}}); err != nil {
		t.resolver.Log.WarnContext(ctx, "removing the worker token failed; it goes stale by itself", "owner", t.Name, "error", err)
	}
}

// Announce says which observers this client runs, and writes the token if it is not
// there yet.
func (t *Token) Announce(ctx context.Context, observers []string) error {
	t.mu.Lock()
	t.observers = observers
	running := t.running
	t.retryAt = time.Time{}
	t.mu.Unlock()
	if t.Name == "" {
		return nil
	}
	if !running {
		t.Ensure(ctx)
		return ctx.Err()
	}
	return t.renewOnce(ctx)
}
