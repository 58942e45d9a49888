package txn

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/changed"
	"github.com/percolator-bigtable/percolator/txn/internal/latch"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A Client runs transactions over an existing Bigtable client. It is safe for
// concurrent use; a process needs one per deployment.
type Client struct {
	resolver  *recovery.Resolver
	cfg       Config
	ownOracle *tso.Direct // closed by Close; nil if Config names an oracle

	latches   *latch.Latches
	recent    *latch.Recent
	crowded   *store.Crowded
	reads     readSharing
	changed   *changed.Rows
	metrics   telemetry.Transactions
	admission store.Admission
	streams   atomic.Int64  // requests of scans under way
	done      chan struct{} // closed when Close has returned

	hooks atomic.Pointer[hooks] // never nil
}

// commitsPerRequest is how many commits a client runs at a time for each request of
// Config.Parallelism.
const commitsPerRequest = 4

// Tables opens tables by name, as *bigtable.Client does. Another implementation may open
// authorized views, or wrap the tables it opens.
type Tables interface {
	OpenTable(name string) bigtable.TableAPI
}

// NewClient returns a client over bt. The caller closes bt, after the Client. NewClient
// reads the metadata table, and tries again until ctx ends. ErrNotInitialized says that the
// table does not exist yet; admin.InitTable creates it.
func NewClient(ctx context.Context, bt Tables, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if isNilTables(bt) {
		return nil, format.Invalidf("nil *bigtable.Client")
	}
	measure, err := telemetry.NewTransactions(cfg.MeterProvider)
	reads, readsErr := telemetry.NewReads(cfg.MeterProvider)
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
		crowded:   store.NewCrowded(),
		metrics:   measure,
		admission: make(store.Admission, commitsPerRequest*s.Config.Parallelism),
		reads:     readSharing{counters: &s.Counters, metrics: reads, prefetchBytes: cfg.PrefetchBytes, batchReads: cfg.BatchReads},
	}
	c.hooks.Store(&hooks{})
	oracle := cfg.Oracle
	if oracle == nil {
		c.ownOracle = tso.NewDirect(s.Metadata.API, tso.DirectConfig{RPCTimeout: s.Config.RPCTimeout, Logger: s.Log, TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider})
		oracle = c.ownOracle
	}
	s.Clock.Oracle = oracle
	c.resolver = recovery.New(s, recovery.Config{TokenTTL: cfg.TokenTTL, PassLocks: cfg.PassLocks, OnConflict: c.noteCommit})
	c.changed = changed.New(s)
	s.SafePoint.KeepFresh(c.resolver.Holds.Any, func(ctx context.Context) {
		c.changed.FlushSoon()
		c.resolver.Holds.Announce(ctx, c.resolver.Token)
	})
	return c, nil
}

// isNilTables reports whether bt is nil or a nil pointer.
func isNilTables(bt Tables) bool {
	v := reflect.ValueOf(bt)
	return bt == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Update runs f in a read-write transaction, commits it, and returns the commit timestamp.
//
// f may run more than once. After a conflict (ErrConflict, from Commit or returned by f)
// Update rolls the transaction back, waits with jittered exponential backoff, and runs f
// again in a new transaction with a new start timestamp. So f must not keep results of an
// earlier run, and must not have side effects that are wrong to repeat. f reads and writes
// through the Txn and uses the context that it is given: if the first read is of a cell that other
// transactions write, too, the transaction may begin with that read. It must not call Commit or
// Rollback.
//
// If garbage collection has passed the transaction (ErrTooOld), Update runs f again once: a
// process may have been stopped for hours. A second time in a row means that f takes longer
// than versions are kept; Update then returns the error.
//
// Update stops
//
//   - when the transaction has committed;
//   - when f returns another error: Update returns it, and nothing is committed;
//   - when ctx ends or [MaxAttempts] is reached: the error names the last conflict, and
//     errors.Is holds with the context's error;
//   - when the outcome of the commit is unknown (ErrUndetermined): then f does not run
//     again, because its effects may be there already. If f returns ErrUndetermined from
//     another transaction, Update's error does not match it: nothing of this
//     transaction was committed.
//
// Set a deadline on ctx. A transaction that wrote nothing returns its start timestamp.
func (c *Client) Update(ctx context.Context, f func(ctx context.Context, tx *Txn) error, opts ...TxnOption) (tso.Timestamp, error) {
	return update(ctx, c, f, opts)
}

// Begin starts a transaction. Commit or Rollback must end it; Rollback may be deferred. Most
// callers want [Client.Update], which runs a transaction again after a conflict. Begin fails
// if the client is closed (ErrClosed), or if the oracle does not answer before ctx ends.
func (c *Client) Begin(ctx context.Context, opts ...TxnOption) (*Txn, error) {
	return begin(ctx, c, &attempt{number: 1}, opts)
}

// hooks are what BeforeCommit has registered.
type hooks struct {
	beforeCommit []func(context.Context, *Txn) error
	keeps        []string // where the entries are of which they maintain all indexes, as TABLE/FAMILY
}

// BeforeCommit registers a function that runs at the beginning of each Commit of a transaction
// that has written. It may read, and write more. If it fails, Commit rolls the transaction
// back and returns the error. Register functions before the first transaction begins. They run
// in the order of their registration.
func (c *Client) BeforeCommit(f func(ctx context.Context, tx *Txn) error) {
	c.register(func(h *hooks) { h.beforeCommit = append(slices.Clone(h.beforeCommit), f) })
}

func (c *Client) register(add func(*hooks)) {
	for {
		old := c.hooks.Load()
		h := *old
		add(&h)
		if c.hooks.CompareAndSwap(old, &h) {
			return
		}
	}
}

// Snapshot returns the state as of now or, with [At], as of an earlier timestamp. It shows
// every transaction that committed before the call, unless [MaxStaleness] lets it be
// older. Snapshot refuses a timestamp that garbage collection has passed with ErrTooOld.
func (c *Client) Snapshot(ctx context.Context, opts ...SnapshotOption) (*Snapshot, error) {
	return newSnapshot(ctx, c, opts)
}

// Latest returns a view of the newest committed state of single rows of a table. It sends
// nothing.
func (c *Client) Latest(table string) *Latest {
	return &Latest{View{client: c, name: table}}
}

// CheckTable reads and checks a table's schema now instead of on first use.
// ErrNotInitialized, ErrSchema or ErrFormatVersion say what is wrong, and the error's text
// names the command that repairs it.
func (c *Client) CheckTable(ctx context.Context, name string) error {
	_, err := c.resolver.Table(ctx, name)
	return err
}

// Settle finds the outcome of a commit that returned ErrUndetermined. While the primary lock
// is there, it sends the commit again with the same commit timestamp; otherwise it reads the
// outcome. If a reader has passed the lock (Config.PassLocks), this commit can never
// take effect, and Settle rolls it back.
//
// It returns StateCommitted or StateRolledBack. It returns another UndeterminedError if ctx
// ends again, or if garbage collection has passed the transaction: from then on only a write
// record proves an outcome, and Settle sends no commit. Another process may call it, with
// only the exported fields of the UndeterminedError.
func (c *Client) Settle(ctx context.Context, u *UndeterminedError) (Status, error) {
	return recovery.Settle(ctx, c.resolver, u)
}

// Timestamp asks the oracle for a new timestamp. It is later than every timestamp that the
// oracle handed out before the call. So a snapshot [At] this timestamp shows all
// transactions that committed before the call.
func (c *Client) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	return c.resolver.Clock.Timestamp(ctx)
}

// Stats returns counts of the client's work since NewClient. It sends nothing.
func (c *Client) Stats() Stats {
	cells, bytes := c.resolver.Background.Queued()
	return newStats(&c.resolver.Counters, cells, bytes)
}

// Close lets no new transaction begin, waits for the open ones to end, drains background
// commits, and removes the worker token. If ctx ends first, the error says what was left:
// locks of committed transactions, which the next reader rolls forward. The Client is
// unusable in either case. A second Close waits for the first. Close does not close the
// Bigtable client, nor an Oracle given in Config.
func (c *Client) Close(ctx context.Context) error {
	if !c.resolver.BeginClose() {
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return store.Ended(ctx, "txn: waiting for another Close", nil)
		}
	}
	defer close(c.done)
	errs := []error{c.resolver.Drain(ctx)}
	c.resolver.EndClose()
	c.resolver.SafePoint.Close()
	c.changed.Flush(ctx)
	c.resolver.Token.Close(ctx)
	if c.ownOracle != nil {
		errs = append(errs, c.ownOracle.Close())
	}
	return errors.Join(errs...)
}
