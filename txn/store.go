package txn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/defaults"
)

// A tableOpener opens tables by name, as *bigtable.Client does.
type tableOpener interface {
	OpenTable(name string) bigtable.TableAPI
}

// A storeConfig configures a store. Package txn's Config describes the fields.
type storeConfig struct {
	MetadataTable     string
	Admin             *bigtable.AdminClient // may be nil
	RPCTimeout        time.Duration
	SchemaMaxAge      time.Duration
	Backoff           backoff
	Parallelism       int
	BackgroundBytes   int
	BackgroundTimeout time.Duration
	TracerProvider    trace.TracerProvider // nil: the global one
	TraceRowKeys      bool
	MeterProvider     metric.MeterProvider // nil: the global one
	Logger            *slog.Logger
}

func (c storeConfig) withDefaults() (storeConfig, error) {
	if c.MetadataTable == "" {
		c.MetadataTable = DefaultMetadataTable
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, cmp.Or(
		defaults.Positive("Config.RPCTimeout", &c.RPCTimeout, 20*time.Second),
		defaults.Positive("Config.BackgroundTimeout", &c.BackgroundTimeout, time.Minute),
		defaults.Positive("Config.SchemaMaxAge", &c.SchemaMaxAge, time.Minute),
		defaults.Positive("Config.Backoff.Min", &c.Backoff.Min, 2*time.Millisecond),
		defaults.Positive("Config.Backoff.Max", &c.Backoff.Max, time.Second),
		defaults.Positive("Config.Parallelism", &c.Parallelism, 64),
		defaults.Positive("Config.BackgroundBytes", &c.BackgroundBytes, 64<<20),
	)
}

// A store is a client's access to Bigtable: its tables, each request with a
// deadline, an error that names the table, a span and a metric; and what all
// requests depend on, the safe point, the oracle's clock and the background queue.
type store struct {
	opener tableOpener
	cfg    storeConfig
	log    *slog.Logger

	clock      clock
	metadata   *table
	background *background
	safePoint  *safePoint
	counters   counters
	hints      hints
	trace      tracing
	metrics    metrics

	mu     sync.Mutex
	tables map[string]*table
	open   int           // transactions and snapshots under way
	closed bool          // set by drain: nothing new begins
	idle   chan struct{} // closed once closed and open is 0
}

// newRequests returns a store that can make requests of tables, and nothing else: it
// needs no metadata table.
func newRequests(opener tableOpener, cfg storeConfig) (*store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, invalid("%v", err)
	}
	s := &store{
		opener: opener,
		cfg:    cfg,
		log:    WithTraceIDs(cfg.Logger),
		tables: map[string]*table{},
		idle:   make(chan struct{}),
		trace:  newTracing(cfg),
	}
	if s.metrics, err = newMetrics(cfg); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	s.clock.init(s)
	return s, nil
}

// newStore reads the safe point from the metadata table: ErrNotInitialized says that
// there is no such table yet. The clock's oracle is the caller's to set.
func newStore(ctx context.Context, opener tableOpener, cfg storeConfig) (*store, error) {
	s, err := newRequests(opener, cfg)
	if err != nil {
		return nil, err
	}
	s.metadata = s.newTable(s.cfg.MetadataTable)
	if err := s.checkMetadata(ctx); err != nil {
		return nil, err
	}
	s.background = newBackground(s)
	if err := s.metrics.watch(s); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	return s, nil
}

func (s *store) newTable(name string) *table { return newTable(s, name) }

// checkMetadata reads the safe point, without which nothing may be read, and so
// finds out whether there is a metadata table.
func (s *store) checkMetadata(ctx context.Context) (err error) {
	s.safePoint, err = newSafePoint(ctx, s)
	for _, e := range flatten(err) {
		if status.Code(e) == codes.NotFound {
			return fmt.Errorf("txn: metadata table %q does not exist: %w: run `percctl table init TABLE` or txn.InitTable (%w)", s.cfg.MetadataTable, ErrNotInitialized, err)
		}
	}
	return err
}

// table returns an opened table, reading and verifying its schema on first
// use.
func (s *store) table(ctx context.Context, name string) (*table, error) {
	s.mu.Lock()
	t := s.tables[name]
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if name == "" || name == s.cfg.MetadataTable {
		return nil, invalid("table name %q", name)
	}
	t = s.newTable(name)
	if err := t.schema.reload(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.tables[name]; first != nil {
		return first, nil
	}
	s.tables[name] = t
	return t, nil
}

// tableNames lists the transactional tables of the deployment, in order.
func (s *store) tableNames(ctx context.Context) ([]string, error) {
	var names []string
	err := s.metadata.readRows(ctx, bigtable.PrefixRange(schemaRowPrefix), func(r bigtable.Row) bool {
		names = append(names, r.Key()[len(schemaRowPrefix):])
		return true
	}, bigtable.RowFilter(interleave(chain(wholeFamily(deployFamily), bigtable.StripValueFilter()))))
	return names, err
}

// enter counts a transaction, snapshot or call in; every nil result is followed by
// one leave.
func (s *store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("txn: %w", ErrClosed)
	}
	s.open++
	return nil
}

func (s *store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.closed && s.open == 0 {
		close(s.idle)
	}
}

// shut lets nothing new begin; first is false when it was called before.
func (s *store) shut() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closed = true
	if s.open == 0 {
		close(s.idle)
	}
	return true
}

// drain waits, after shut, until everything that was begun has ended and the background
// queue is empty. An error says what was left when ctx ended.
func (s *store) drain(ctx context.Context) error {
	var errs []error
	select {
	case <-s.idle:
	case <-ctx.Done():
		errs = append(errs, ended(ctx, "closing with transactions that were neither committed nor rolled back", nil))
	}
	return errors.Join(append(errs, s.background.close(ctx), s.metrics.close())...)
}

// pages reads rows of a table as they are stored, page by page, until fn
// returns false or an error.
func (s *store) pages(ctx context.Context, name string, rs bigtable.RowSet, filter func(*table) bigtable.Filter, fn func(*table, []bigtable.Row) (bool, error)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	t, err := s.table(ctx, name)
	if err != nil {
		return err
	}
	rest, err := newRowSet(rs)
	if err != nil {
		return err
	}
	for !rest.empty() {
		request := rest.request(false)
		var page []bigtable.Row
		bytes := 0
		cut, err := t.readPage(ctx, request, maxPageRows, filter(t), func(raw bigtable.Row) bool {
			page = append(page, raw)
			bytes += rowBytes(raw)
			return bytes < maxPageBytes
		})
		if err != nil {
			return err
		}
		if goOn, err := fn(t, page); err != nil || !goOn {
			return err
		}
		if cut {
			rest = rest.beyond(page[len(page)-1].Key(), false)
		} else {
			rest = rest.answered(request, false)
		}
	}
	return nil
}

// metadataRows calls fn with the rows of a prefix of the metadata table and the
// value of one of their columns, page by page.
func (s *store) metadataRows(ctx context.Context, prefix, qualifier string, fn func(bigtable.Row, []byte) (bool, error)) error {
	rest, err := newRowSet(bigtable.PrefixRange(prefix))
	if err != nil {
		return err
	}
	for !rest.empty() {
		request := rest.request(false)
		var page []bigtable.Row
		cut, err := s.metadata.readPage(ctx, request, maxPageRows, interleave(column(deployFamily, qualifier)), func(r bigtable.Row) bool {
			page = append(page, r)
			return true
		})
		if err != nil {
			return err
		}
		for _, r := range page {
			if len(r[deployFamily]) == 0 {
				continue
			}
			if goOn, err := fn(r, r[deployFamily][0].Value); err != nil || !goOn {
				return err
			}
		}
		if cut {
			rest = rest.beyond(page[len(page)-1].Key(), false)
		} else {
			rest = rest.answered(request, false)
		}
	}
	return nil
}

// mutate applies idempotent mutations in the foreground.
func (s *store) mutate(ctx context.Context, byTable map[string][]rowMutation) error {
	var errs []error
	for name, muts := range byTable {
		t, err := s.table(ctx, name)
		if err == nil {
			_, err = t.apply(ctx, muts)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func rowBytes(raw bigtable.Row) (n int) {
	for _, items := range raw {
		for _, it := range items {
			n += len(it.Value) + len(it.Column)
		}
	}
	return n
}
