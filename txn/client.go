package txn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"

	"github.com/percolator-bigtable/percolator/txn/internal/latch"
)

// A Client runs transactions over an existing Bigtable client. It is safe for
// concurrent use; a process needs one per deployment.
type Client struct {
	resolver  *recovery.Resolver
	cfg       Config
	ownOracle *tso.Direct // closed by Close; nil when the oracle is the caller's

	latches   *latch.Latches
	recent    *latch.Recent
	reads     readSharing
	starts    startsAhead
	measure   transactionMetrics
	admission latch.Admission
	streams   atomic.Int64  // requests of scans under way
	done      chan struct{} // closed when Close is through
}

// Tables opens tables by name, as *bigtable.Client does. A type of the caller's may
// open authorized views instead, or wrap what it opens.
type Tables interface {
	OpenTable(name string) bigtable.TableAPI
}

// NewClient returns a client over bt, which stays the caller's to close, after
// the Client. It reads the metadata table once: ErrNotInitialized says that it
// does not exist yet, which [InitTable] mends.
func NewClient(ctx context.Context, bt Tables, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if nothing(bt) {
		return nil, format.Invalidf("nil *bigtable.Client")
	}
	measure, err := newTransactionMetrics(cfg.MeterProvider)
	reads, readsErr := newReadMetrics(cfg.MeterProvider)
	if err := errors.Join(err, readsErr); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	s, err := store.New(ctx, bt, cfg.store())
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg:       cfg,
		done:      make(chan struct{}),
		latches:   latch.New(cfg.LatchWait),
		recent:    latch.NewRecent(cfg.LatchWait),
		measure:   measure,
		admission: latch.NewAdmission(latch.CommitsPerRequest * s.Config.Parallelism),
		reads:     readSharing{counters: &s.Counters, measure: reads, prefetchBytes: cfg.PrefetchBytes, batchReads: cfg.BatchReads},
	}
	oracle := cfg.Oracle
	if oracle == nil {
		c.ownOracle = tso.NewDirect(s.Metadata.API, tso.DirectConfig{RPCTimeout: s.Config.RPCTimeout, Logger: s.Log, TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider})
		oracle = c.ownOracle
	}
	s.Clock.Oracle = oracle
	s.Hints.Carrier, _ = oracle.(tso.Hints)
	c.resolver = recovery.New(s, recovery.Config{TokenTTL: cfg.TokenTTL, PassLocks: cfg.PassLocks})
	s.SafePoint.Keep(func(ctx context.Context) { c.resolver.Holds.Announce(ctx, c.resolver.Token) })
	return c, nil
}

// nothing reports a nil, also one of a pointer's type.
func nothing(bt Tables) bool {
	v := reflect.ValueOf(bt)
	return bt == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Update runs f in a read-write transaction, commits it, and returns the
// commit timestamp.
//
// f may run more than once: after a conflict (ErrConflict, from Commit or
// returned by f) the transaction is rolled back, Update waits with jittered
// exponential backoff, and f runs again in a new transaction with a new start
// timestamp. f must not keep results of an earlier run, and must not have side
// effects that are wrong to repeat. f reads and writes through the Txn it is
// given and uses the context it is given; it must not call Commit or Rollback.
//
// A transaction that garbage collection has passed (ErrTooOld) is run again in
// the same way, once: a process may have been stopped for hours. A second time
// in a row means that f takes longer than versions are kept, and is returned.
//
// Update stops when the transaction committed; when f returns an error that is
// neither of these, which is returned as it is, with nothing committed; when ctx
// ends or the attempts are used up, with an error that tells the last conflict
// (errors.Is with the context's error holds); or when a commit's outcome is
// unknown (ErrUndetermined): then f is not run again, because its effects may
// be there already. That of another transaction, which f has made, is f's matter:
// ErrUndetermined does not hold for it here. Set a deadline on ctx.
//
// A transaction that wrote nothing returns its start timestamp.
func (c *Client) Update(ctx context.Context, f func(ctx context.Context, tx *Txn) error, opts ...TxnOption) (tso.Timestamp, error) {
	return update(ctx, c, f, opts)
}

// Begin starts a transaction, which has to be ended by Commit or Rollback.
// Rollback may be deferred. Most callers want [Client.Update], which runs a
// transaction again after a conflict.
func (c *Client) Begin(ctx context.Context, opts ...TxnOption) (*Txn, error) {
	return begin(ctx, c, &attempt{number: 1}, opts)
}

// Snapshot returns the state as of now, or, with [At], as of an earlier
// timestamp. It sees every transaction that committed before the call, unless
// [MaxStaleness] lets it be older. A timestamp that garbage collection has
// passed is refused with ErrTooOld.
func (c *Client) Snapshot(ctx context.Context, opts ...SnapshotOption) (*Snapshot, error) {
	return newSnapshot(ctx, c, opts)
}

// OpenTable reads and verifies a table's schema now instead of on first use:
// ErrNotInitialized, ErrSchema or ErrFormatVersion name what is wrong and the
// command that mends it.
func (c *Client) OpenTable(ctx context.Context, name string) error {
	_, err := c.resolver.Table(ctx, name)
	return err
}

// Owner returns the token that this client writes into its locks; empty when
// Config.TokenTTL is negative.
func (c *Client) Owner() string { return c.resolver.Token.Name }

// Settle brings a commit whose outcome was unknown to its end: it sends the
// commit again, with the same commit timestamp, as long as the primary lock is
// there, and otherwise reads what became of it. A commit that cannot land any more,
// because a reader has passed its lock (Config.PassLocks), it rolls back. It returns
// StateCommitted or
// StateRolledBack, or an UndeterminedError when it could not find out, because
// ctx ended once more, for example, or because garbage collection has passed the
// transaction: from then on only a record of the commit proves anything, and a
// commit is not sent any more. It may be
// called from another process than the one that committed, with the exported
// fields of the UndeterminedError alone.
func (c *Client) Settle(ctx context.Context, u *UndeterminedError) (Status, error) {
	return recovery.Settle(ctx, c.resolver, u)
}

// Timestamp asks the oracle for a timestamp.
func (c *Client) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	return c.resolver.Clock.Timestamp(ctx)
}

// Stats returns the client's counts.
func (c *Client) Stats() Stats {
	cells, bytes := c.resolver.Background.Queued()
	return newStats(&c.resolver.Counters, cells, bytes)
}

// Close lets no new transaction begin, waits until those that were begun are
// committed or rolled back, drains background commits, and withdraws the worker
// token. When ctx ends first it returns an error that says what was left: locks
// of committed transactions, which whoever meets them rolls forward. The Client
// is unusable in either case. A second Close waits for the first. Close does not
// close the bigtable.Client or an Oracle given in Config.
func (c *Client) Close(ctx context.Context) error {
	if !c.resolver.Shut() {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return store.Ended(ctx, "waiting for another Close", nil)
		}
	}
	defer close(c.done)
	errs := []error{c.resolver.Drain(ctx)}
	c.resolver.SafePoint.Close()
	c.resolver.Token.Close(ctx)
	if c.ownOracle != nil {
		errs = append(errs, c.ownOracle.Close())
	}
	return errors.Join(errs...)
}
