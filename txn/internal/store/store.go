package store

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
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// A tableOpener opens tables by name, as *bigtable.Client does.
type tableOpener interface {
	OpenTable(name string) bigtable.TableAPI
}

// A storeConfig configures a store. Package txn's Config describes the fields.
type Config struct {
	MetadataTable     string
	Admin             *bigtable.AdminClient // may be nil
	RPCTimeout        time.Duration
	SchemaMaxAge      time.Duration
	Backoff           Backoff
	Parallelism       int
	BackgroundBytes   int
	BackgroundTimeout time.Duration
	TracerProvider    trace.TracerProvider // nil: the global one
	TraceRowKeys      bool
	MeterProvider     metric.MeterProvider // nil: the global one
	Logger            *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.MetadataTable == "" {
		c.MetadataTable = format.DefaultMetadataTable
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
type Store struct {
	opener tableOpener
	Config Config
	Log    *slog.Logger

	Clock      Clock
	Metadata   *Table
	Background *Background
	SafePoint  *SafePoint
	Counters   Counters
	Hints      Hints
	Trace      telemetry.Tracing
	Metrics    telemetry.Metrics

	mu     sync.Mutex
	tables map[string]*Table
	open   int           // transactions and snapshots under way
	closed bool          // set by drain: nothing new begins
	idle   chan struct{} // closed once closed and open is 0
}

// NewRequests returns a store that can make requests of tables, and nothing else: it
// needs no metadata table.
func NewRequests(opener tableOpener, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, format.Invalidf("%v", err)
	}
	s := &Store{
		opener: opener,
		Config: cfg,
		Log:    telemetry.WithTraceIDs(cfg.Logger),
		tables: map[string]*Table{},
		idle:   make(chan struct{}),
		Trace:  telemetry.NewTracing(cfg.TracerProvider, cfg.TraceRowKeys),
	}
	if s.Metrics, err = telemetry.NewMetrics(cfg.MeterProvider); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	s.Clock.init(s)
	return s, nil
}

// New reads the safe point from the metadata table: ErrNotInitialized says that
// there is no such table yet. The clock's oracle is the caller's to set.
func New(ctx context.Context, opener tableOpener, cfg Config) (*Store, error) {
	s, err := NewRequests(opener, cfg)
	if err != nil {
		return nil, err
	}
	s.Metadata = s.NewTable(s.Config.MetadataTable)
	if err := s.checkMetadata(ctx); err != nil {
		return nil, err
	}
	s.Background = newBackground(s)
	if err := s.Metrics.Watch(s.queued, s.safePointAge); err != nil {
		return nil, fmt.Errorf("txn: metrics: %w", err)
	}
	return s, nil
}

func (s *Store) NewTable(name string) *Table { return newTable(s, name) }

// checkMetadata reads the safe point, without which nothing may be read, and so
// finds out whether there is a metadata table.
func (s *Store) checkMetadata(ctx context.Context) (err error) {
	s.SafePoint, err = newSafePoint(ctx, s)
	for _, e := range RPCErrors(err) {
		if status.Code(e) == codes.NotFound {
			return fmt.Errorf("txn: metadata table %q does not exist: %w: run `percctl table init TABLE` or txn.InitTable (%w)", s.Config.MetadataTable, format.ErrNotInitialized, err)
		}
	}
	return err
}

// Table returns an opened table, reading and verifying its schema on first
// use.
func (s *Store) Table(ctx context.Context, name string) (*Table, error) {
	s.mu.Lock()
	t := s.tables[name]
	s.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if name == "" || name == s.Config.MetadataTable {
		return nil, format.Invalidf("table name %q", name)
	}
	t = s.NewTable(name)
	if err := t.Schema.Reload(ctx); err != nil {
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

// TableNames lists the transactional tables of the deployment, in order.
func (s *Store) TableNames(ctx context.Context) ([]string, error) {
	var names []string
	err := s.Metadata.ReadRows(ctx, bigtable.PrefixRange(SchemaRowPrefix), func(r bigtable.Row) bool {
		names = append(names, r.Key()[len(SchemaRowPrefix):])
		return true
	}, bigtable.RowFilter(Interleave(Chain(WholeFamily(DeployFamily), bigtable.StripValueFilter()))))
	return names, err
}

// Enter counts a transaction, snapshot or call in; every nil result is followed by
// one leave.
func (s *Store) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("txn: %w", format.ErrClosed)
	}
	s.open++
	return nil
}

func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.closed && s.open == 0 {
		close(s.idle)
	}
}

// BeginClose lets nothing new begin; first is false when it was called before.
func (s *Store) BeginClose() (first bool) {
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

// Drain waits, after shut, until everything that was begun has ended and the background
// queue is empty. An error says what was left when ctx ended.
func (s *Store) Drain(ctx context.Context) error {
	var errs []error
	select {
	case <-s.idle:
	case <-ctx.Done():
		errs = append(errs, Ended(ctx, "closing with transactions that were neither committed nor rolled back", nil))
	}
	return errors.Join(append(errs, s.Background.close(ctx), s.Metrics.Close())...)
}

// Pages reads rows of a table as they are stored, page by page, until fn
// returns false or an error.
func (s *Store) Pages(ctx context.Context, name string, rs bigtable.RowSet, filter func(*Table) bigtable.Filter, fn func(*Table, []bigtable.Row) (bool, error)) error {
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	t, err := s.Table(ctx, name)
	if err != nil {
		return err
	}
	rest, err := NewRowSet(rs)
	if err != nil {
		return err
	}
	for !rest.Empty() {
		request := rest.Request(false)
		var page []bigtable.Row
		bytes := 0
		cut, err := t.ReadPage(ctx, request, MaxPageRows, filter(t), func(raw bigtable.Row) bool {
			page = append(page, raw)
			bytes += RowBytes(raw)
			return bytes < MaxPageBytes
		})
		if err != nil {
			return err
		}
		if goOn, err := fn(t, page); err != nil || !goOn {
			return err
		}
		if cut {
			rest = rest.AfterKey(page[len(page)-1].Key(), false)
		} else {
			rest = rest.AfterRequest(request, false)
		}
	}
	return nil
}

// MetadataRows calls fn with the rows of a prefix of the metadata table and the
// value of one of their columns, page by page.
func (s *Store) MetadataRows(ctx context.Context, prefix, qualifier string, fn func(bigtable.Row, []byte) (bool, error)) error {
	rest, err := NewRowSet(bigtable.PrefixRange(prefix))
	if err != nil {
		return err
	}
	for !rest.Empty() {
		request := rest.Request(false)
		var page []bigtable.Row
		cut, err := s.Metadata.ReadPage(ctx, request, MaxPageRows, Interleave(ExactColumn(DeployFamily, qualifier)), func(r bigtable.Row) bool {
			page = append(page, r)
			return true
		})
		if err != nil {
			return err
		}
		for _, r := range page {
			if len(r[DeployFamily]) == 0 {
				continue
			}
			if goOn, err := fn(r, r[DeployFamily][0].Value); err != nil || !goOn {
				return err
			}
		}
		if cut {
			rest = rest.AfterKey(page[len(page)-1].Key(), false)
		} else {
			rest = rest.AfterRequest(request, false)
		}
	}
	return nil
}

// Mutate applies idempotent mutations in the foreground.
func (s *Store) Mutate(ctx context.Context, byTable map[string][]RowMutation) error {
	var errs []error
	for name, muts := range byTable {
		t, err := s.Table(ctx, name)
		if err == nil {
			_, err = t.Apply(ctx, muts)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func RowBytes(raw bigtable.Row) (n int) {
	for _, items := range raw {
		for _, it := range items {
			n += len(it.Value) + len(it.Column)
		}
	}
	return n
}

// queued is how many changes of cells wait for background work.
func (s *Store) queued() int {
	cells, _ := s.Background.Queued()
	return cells
}

// safePointAge is the age, in oracle time, of the safe point that this client uses; 0: it
// is not known.
func (s *Store) safePointAge() time.Duration {
	if p, now := s.SafePoint.View.Load().TS, s.Clock.Now(); p > 0 && now > 0 {
		return time.Duration(now-p) * time.Microsecond
	}
	return 0
}
