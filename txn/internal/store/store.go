package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
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

// A Config configures a Store. Package txn's Config describes the fields.
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
	err := cmp.Or(
		defaults.Positive("Config.RPCTimeout", &c.RPCTimeout, 20*time.Second),
		defaults.Positive("Config.BackgroundTimeout", &c.BackgroundTimeout, time.Minute),
		defaults.Positive("Config.SchemaMaxAge", &c.SchemaMaxAge, time.Minute),
		defaults.Positive("Config.Backoff.Min", &c.Backoff.Min, 2*time.Millisecond),
		defaults.Positive("Config.Backoff.Max", &c.Backoff.Max, time.Second),
		defaults.Positive("Config.Parallelism", &c.Parallelism, 64),
		defaults.Positive("Config.BackgroundBytes", &c.BackgroundBytes, 64<<20),
	)
	return c, err
}

// A Store makes a client's requests to Bigtable, and holds what they depend on.
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

	reads Admission
	// How long conditional mutations take, and the least time after which one counts as stalled, in
	// nanoseconds.
	usual, minStall atomic.Int64
	refused         chan struct{} // holds one token while a table waits for the quota of the admin service
	ended           atomic.Bool   // EndClose was called: nothing may continue
	mu              sync.Mutex
	tables          map[string]*Table
	opening         map[string]*Table // those whose first schema is being read
	open            int               // transactions, snapshots and calls that have not ended
	closed          bool              // BeginClose was called: nothing new may begin
	idle            chan struct{}     // closed once closed is set and open is 0
}

// NewRequests returns a Store that can only make requests of tables. It needs no metadata
// table.
func NewRequests(opener tableOpener, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, format.Invalidf("%v", err)
	}
	s := &Store{
		opener: opener,
		Config: cfg,
		Log:    telemetry.WithTraceIDs(cfg.Logger),
		tables: map[string]*Table{}, opening: map[string]*Table{},
		refused: make(chan struct{}, 1),
		reads:   make(Admission, maxReads),
		idle:    make(chan struct{}),
		Trace:   telemetry.NewTracing(cfg.TracerProvider, cfg.TraceRowKeys),
	}
	if s.Metrics, err = telemetry.NewMetrics(cfg.MeterProvider); err != nil {
		return nil, fmt.Errorf("percolator: metrics: %w", err)
	}
	s.Clock.init(s)
	s.SetMinStall(minStall)
	return s, nil
}

// New returns a Store, and reads the safe point from the metadata table. If there is no
// metadata table, the error matches format.ErrNotInitialized. The caller sets Clock.Oracle.
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
		return nil, fmt.Errorf("percolator: metrics: %w", err)
	}
	return s, nil
}

// NewTable returns a table without reading its schema.
func (s *Store) NewTable(name string) *Table { return newTable(s, name) }

// checkMetadata reads the safe point, without which nothing may be read. So it also finds out
// whether the metadata table exists.
func (s *Store) checkMetadata(ctx context.Context) (err error) {
	s.SafePoint, err = newSafePoint(ctx, s)
	for _, e := range RPCErrors(err) {
		if status.Code(e) == codes.NotFound {
			return fmt.Errorf("percolator: metadata table %q does not exist: %w: run `percctl table init TABLE` or admin.InitTable (%w)", s.Config.MetadataTable, format.ErrNotInitialized, e)
		}
	}
	return err
}

// Table returns an opened table. On first use it reads and verifies the table's schema.
func (s *Store) Table(ctx context.Context, name string) (*Table, error) {
	s.mu.Lock()
	t := s.tables[name]
	s.mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return nil, err
	}
	if t != nil {
		return t, nil
	}
	if name == "" || name == s.Config.MetadataTable {
		return nil, format.Invalidf("table name %q", name)
	}
	s.mu.Lock()
	if t = s.opening[name]; t == nil {
		t = s.NewTable(name)
		s.opening[name] = t
	}
	s.mu.Unlock()
	err := t.Schema.open(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opening[name] == t {
		delete(s.opening, name)
	}
	if err != nil {
		return nil, err
	}
	if first := s.tables[name]; first != nil {
		return first, nil
	}
	s.tables[name] = t
	return t, nil
}

// TableNames returns the transactional tables of the deployment, in order.
func (s *Store) TableNames(ctx context.Context) ([]string, error) {
	var names []string
	if err := s.CheckOpen(); err != nil {
		return nil, err
	}
	err := s.Metadata.ReadRows(ctx, bigtable.PrefixRange(SchemaRowPrefix), func(r bigtable.Row) bool {
		names = append(names, r.Key()[len(SchemaRowPrefix):])
		return true
	}, bigtable.RowFilter(Interleave(Chain(WholeFamily(DeployFamily), bigtable.StripValueFilter()))))
	return names, err
}

// Enter registers a transaction, snapshot or call that begins. The caller calls Leave after
// every nil result. If the client is closed, the error matches format.ErrClosed.
func (s *Store) Enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("percolator: %w", format.ErrClosed)
	}
	s.open++
	return nil
}

// Leave ends what Enter registered.
func (s *Store) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if s.closed && s.open == 0 {
		close(s.idle)
	}
}

// BeginClose makes Enter fail from now on. first is false if it was called before.
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

// CheckOpen returns an error that matches format.ErrClosed after EndClose. Between BeginClose and
// EndClose, what has begun continues.
func (s *Store) CheckOpen() error {
	if s.ended.Load() {
		return fmt.Errorf("percolator: %w", format.ErrClosed)
	}
	return nil
}

// EndClose makes everything fail that is still open.
func (s *Store) EndClose() { s.ended.Store(true) }

// Drain waits, after BeginClose, until everything that Enter registered has ended and the
// background queue is empty. If ctx ends first, the error says what was left.
func (s *Store) Drain(ctx context.Context) error {
	var errs []error
	select {
	case <-s.idle:
	case <-ctx.Done():
		errs = append(errs, Ended(ctx, "percolator: closing the client: some transactions were neither committed nor rolled back", nil))
	}
	return errors.Join(append(errs, s.Background.close(ctx), s.Metrics.Close())...)
}

// Pages reads rows of a table as they are stored, and calls fn with them page by page, until fn
// returns false or an error. filter returns the filter of a page. It tries each page until ctx
// ends.
func (s *Store) Pages(ctx context.Context, name string, rs bigtable.RowSet, filter func(*Table) bigtable.Filter, fn func(*Table, []bigtable.Row) (bool, error)) error {
	return s.pages(ctx, name, rs, false, filter, fn)
}

// TryPages is Pages with one try of each page, for callers that have something else to read.
func (s *Store) TryPages(ctx context.Context, name string, rs bigtable.RowSet, filter func(*Table) bigtable.Filter, fn func(*Table, []bigtable.Row) (bool, error)) error {
	return s.pages(ctx, name, rs, true, filter, fn)
}

func (s *Store) pages(ctx context.Context, name string, rs bigtable.RowSet, once bool, filter func(*Table) bigtable.Filter, fn func(*Table, []bigtable.Row) (bool, error)) error {
	if err := s.Enter(); err != nil {
		return err
	}
	defer s.Leave()
	t, err := s.Table(ctx, name)
	if err != nil {
		return err
	}
	return t.pages(ctx, rs, once, filter, fn)
}

// MetadataRows calls fn with the rows of the metadata table that begin with prefix, and the
// value of one of their columns, until fn returns false or an error.
func (s *Store) MetadataRows(ctx context.Context, prefix, qualifier string, fn func(bigtable.Row, []byte) (bool, error)) error {
	if err := s.CheckOpen(); err != nil {
		return err
	}
	column := func(*Table) bigtable.Filter { return Interleave(ExactColumn(DeployFamily, qualifier)) }
	return s.Metadata.pages(ctx, bigtable.PrefixRange(prefix), false, column, func(_ *Table, page []bigtable.Row) (bool, error) {
		for _, r := range page {
			if goOn, err := fn(r, r[DeployFamily][0].Value); err != nil || !goOn {
				return false, err
			}
		}
		return true, nil
	})
}

// Mutate applies idempotent mutations and waits for the result.
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

// queued returns how many changes of cells wait for background work.
func (s *Store) queued() int {
	cells, _ := s.Background.Queued()
	return cells
}

// safePointAge returns the age, in oracle time, of the safe point that this client uses. 0
// means that it is not known.
func (s *Store) safePointAge() time.Duration {
	if p, now := s.SafePoint.View.Load().TS, s.Clock.Now(); p > 0 && now > 0 {
		return now.Sub(p)
	}
	return 0
}
