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
)

// A Client runs transactions over an existing Bigtable client. It is safe for
// concurrent use; a process needs one per deployment.
type Client struct {
	*recovery.Resolver
	cfg       Config
	ownOracle *tso.Direct // closed by Close; nil when the oracle is the caller's

	latches  *latches
	recent   *recentCommits
	patterns patterns
	starts   starts
	measure  transactionMetrics
	admitted chan struct{} // holds one token for each commit under way
	streams  atomic.Int64  // requests of scans under way
	done     chan struct{} // closed when Close is through
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
	if err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	s, err := store.New(ctx, bt, cfg.store())
	if err != nil {
		return nil, err
	}
	c := &Client{
		cfg:      cfg,
		done:     make(chan struct{}),
		latches:  newLatches(cfg.LatchWait),
		recent:   newRecentCommits(cfg.LatchWait),
		measure:  measure,
		admitted: make(chan struct{}, commitsPerRequest*s.Config.Parallelism),
	}
	oracle := cfg.Oracle
	if oracle == nil {
		c.ownOracle = tso.NewDirect(s.Metadata.Api, tso.DirectConfig{RPCTimeout: s.Config.RPCTimeout, Logger: s.Log, TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider})
		oracle = c.ownOracle
	}
	s.Clock.Oracle = oracle
	s.Hints.Carrier, _ = oracle.(tso.Hints)
	c.Resolver = recovery.New(s, recovery.Config{TokenTTL: cfg.TokenTTL, PassLocks: cfg.PassLocks})
	s.SafePoint.Keep(func(ctx context.Context) { c.Holds.Announce(ctx, c.Token) })
	return c, nil
}

// nothing reports a nil, also one of a pointer's type.
func nothing(bt Tables) bool {
	v := reflect.ValueOf(bt)
	return bt == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// OpenTable reads and verifies a table's schema now instead of on first use:
// ErrNotInitialized, ErrSchema or ErrFormatVersion name what is wrong and the
// command that mends it.
func (c *Client) OpenTable(ctx context.Context, name string) error {
	_, err := c.Table(ctx, name)
	return err
}

// Owner returns the token that this client writes into its locks; empty when
// Config.TokenTTL is negative.
func (c *Client) Owner() string { return c.Token.Name }

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
	return c.Resolver.Settle(ctx, u)
}

// Timestamp asks the oracle for a timestamp.
func (c *Client) Timestamp(ctx context.Context) (tso.Timestamp, error) { return c.Clock.Timestamp(ctx) }

// Close lets no new transaction begin, waits until those that were begun are
// committed or rolled back, drains background commits, and withdraws the worker
// token. When ctx ends first it returns an error that says what was left: locks
// of committed transactions, which whoever meets them rolls forward. The Client
// is unusable in either case. A second Close waits for the first. Close does not
// close the bigtable.Client or an Oracle given in Config.
func (c *Client) Close(ctx context.Context) error {
	if !c.Shut() {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return store.Ended(ctx, "waiting for another Close", nil)
		}
	}
	defer close(c.done)
	errs := []error{c.Drain(ctx)}
	c.SafePoint.Close()
	c.Token.Close(ctx)
	if c.ownOracle != nil {
		errs = append(errs, c.ownOracle.Close())
	}
	return errors.Join(errs...)
}
