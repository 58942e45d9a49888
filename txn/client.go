package txn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
)

// A Client runs transactions over an existing Bigtable client. It is safe for
// concurrent use; a process needs one per deployment.
type Client struct {
	bt  *bigtable.Client
	cfg Config
	log *slog.Logger

	oracle    tso.Oracle
	ownOracle *tso.Direct // closed by Close; nil when the oracle is the caller's

	metadata   *table
	background *background
	token      *token
	safePoint  *safePoint
	holds      *holds
	fates      *fateCache
	latches    *latches
	recent     *recentCommits
	counters   counters
	patterns   patterns
	starts     starts
	hints      hintWatchers
	trace      tracing
	metrics    metrics
	made       time.Time
	admitted   chan struct{} // holds one token for each commit under way
	streams    atomic.Int64  // requests of scans under way
	// oracleAhead is how far the oracle's time is ahead of the time since made,
	// in microseconds; 0: not known yet.
	oracleAhead atomic.Int64
	youngest    youngest

	mu     sync.Mutex
	tables map[string]*table
	open   int           // transactions and snapshots under way
	closed bool          // set by Close: nothing new begins
	idle   chan struct{} // closed once closed and open is 0
	done   chan struct{} // closed when Close is through
}

// NewClient returns a client over bt, which stays the caller's to close, after
// the Client. It reads the metadata table once: ErrNotInitialized says that it
// does not exist yet, which [InitTable] mends.
func NewClient(ctx context.Context, bt *bigtable.Client, cfg Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if bt == nil {
		return nil, invalid("nil *bigtable.Client")
	}
	c := &Client{
		bt:      bt,
		cfg:     cfg,
		log:     WithTraceIDs(cfg.Logger),
		oracle:  cfg.Oracle,
		tables:  map[string]*table{},
		idle:    make(chan struct{}),
		done:    make(chan struct{}),
		fates:   newFateCache(),
		latches: newLatches(cfg),
		recent:  newRecentCommits(cfg),
		made:    time.Now(),
		holds:   newHolds(),
		trace:   newTracing(cfg),

		admitted: make(chan struct{}, cfg.MaxCommits),
	}
	if c.metrics, err = newMetrics(cfg); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	c.metadata = c.newTable(cfg.MetadataTable)
	if err := c.checkMetadata(ctx); err != nil {
		return nil, err
	}
	c.background = newBackground(c)
	if err := c.metrics.watch(c); err != nil {
		c.background.cancel()
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	if c.oracle == nil {
		c.ownOracle = tso.NewDirect(c.metadata.api, tso.DirectConfig{RPCTimeout: cfg.RPCTimeout, Logger: c.log, TracerProvider: cfg.TracerProvider, MeterProvider: cfg.MeterProvider})
		c.oracle = c.ownOracle
	}
	c.token = newToken(c)
	c.safePoint.keep()
	return c, nil
}

func (c *Client) newTable(name string) *table {
	return &table{name: name, api: c.bt.OpenTable(name), client: c, reloading: make(chan struct{}, 1)}
}

// checkMetadata reads the safe point, without which nothing may be read, and so
// finds out whether there is a metadata table.
func (c *Client) checkMetadata(ctx context.Context) (err error) {
	c.safePoint, err = newSafePoint(ctx, c)
	for _, e := range flatten(err) {
		if status.Code(e) == codes.NotFound {
			return fmt.Errorf("txn: metadata table %q does not exist: %w: run `percctl table init TABLE` or txn.InitTable (%w)", c.cfg.MetadataTable, ErrNotInitialized, err)
		}
	}
	return err
}

// table returns an opened table, reading and verifying its schema on first
// use.
func (c *Client) table(ctx context.Context, name string) (*table, error) {
	c.mu.Lock()
	t := c.tables[name]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if name == "" || name == c.cfg.MetadataTable {
		return nil, invalid("table name %q", name)
	}
	t = c.newTable(name)
	if err := t.reload(ctx); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.tables[name]; first != nil {
		return first, nil
	}
	c.tables[name] = t
	return t, nil
}

// OpenTable reads and verifies a table's schema now instead of on first use:
// ErrNotInitialized, ErrSchema or ErrFormatVersion name what is wrong and the
// command that mends it.
func (c *Client) OpenTable(ctx context.Context, name string) error {
	_, err := c.table(ctx, name)
	return err
}

// Tables lists the transactional tables of the deployment.
func (c *Client) Tables(ctx context.Context) ([]string, error) {
	var names []string
	err := c.metadata.readRows(ctx, bigtable.PrefixRange(schemaRowPrefix), func(r bigtable.Row) bool {
		names = append(names, r.Key()[len(schemaRowPrefix):])
		return true
	}, bigtable.RowFilter(interleave(chain(wholeFamily(deployFamily), bigtable.StripValueFilter()))))
	return names, err
}

// Timestamp asks the oracle for a timestamp.
func (c *Client) Timestamp(ctx context.Context) (tso.Timestamp, error) {
	ts, asked, err := c.ask(ctx)
	if err == nil {
		c.youngest.learn(ts-1, asked)
	}
	return ts, err
}

// ask is Timestamp for what is not to be read at yet: a commit_ts. asked is
// before the request.
func (c *Client) ask(ctx context.Context) (ts tso.Timestamp, asked time.Time, err error) {
	c.counters.timestamps.Add(1)
	began := time.Now()
	sctx, span := c.trace.begin(ctx, "timestamp", "")
	ts, err = c.oracle.Timestamp(sctx)
	span.end(err)
	c.metrics.timestamp(ctx, began, err)
	if err != nil {
		return 0, began, fmt.Errorf("txn: timestamp oracle: %w", err)
	}
	c.oracleAhead.Store(int64(ts) - time.Since(c.made).Microseconds())
	return ts, began, nil
}

// enter counts a transaction or snapshot in; every nil result is followed by
// one leave.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("txn: %w", ErrClosed)
	}
	c.open++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.closed && c.open == 0 {
		close(c.idle)
	}
}

// Close lets no new transaction begin, waits until those that were begun are
// committed or rolled back, drains background commits, and withdraws the worker
// token. When ctx ends first it returns an error that says what was left: locks
// of committed transactions, which whoever meets them rolls forward. The Client
// is unusable in either case. A second Close waits for the first. Close does not
// close the bigtable.Client or an Oracle given in Config.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		select {
		case <-c.done:
			return nil
		case <-ctx.Done():
			return ended(ctx, "waiting for another Close", nil)
		}
	}
	defer close(c.done)
	c.closed = true
	if c.open == 0 {
		close(c.idle)
	}
	c.mu.Unlock()

	var errs []error
	select {
	case <-c.idle:
	case <-ctx.Done():
		errs = append(errs, ended(ctx, "closing with transactions that were neither committed nor rolled back", nil))
	}
	errs = append(errs, c.background.close(ctx), c.metrics.close())
	c.safePoint.close()
	c.token.close(ctx)
	if c.ownOracle != nil {
		errs = append(errs, c.ownOracle.Close())
	}
	return errors.Join(errs...)
}
