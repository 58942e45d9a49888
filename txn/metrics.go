package txn

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// This file holds the metrics of transactions (docs/observability.md lists
// them). Attributes are made only where somebody measures.

// The bucket boundaries that OpenTelemetry prescribes for the duration of
// database operations, in seconds.
var durationBuckets = metric.WithExplicitBucketBoundaries(.001, .005, .01, .05, .1, .5, 1, 5, 10)

var countBuckets = metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)

// metrics are the client's instruments.
type metrics struct {
	operations  metric.Float64Histogram // every request to Bigtable
	oracle      metric.Float64Histogram
	duration    metric.Float64Histogram // of transactions
	rows        metric.Int64Histogram
	requests    metric.Int64Histogram // in a transaction
	retries     metric.Int64Counter
	conflicts   metric.Int64Counter
	lockWait    metric.Float64Histogram
	latchWait   metric.Float64Histogram
	resolutions metric.Int64Counter
	dropped     metric.Int64Counter
	batchRows   metric.Int64Histogram
	strandedAge metric.Float64Histogram
	gc          gcMetrics
	reads       readMetrics

	oldest   *oldest
	age      metric.Float64ObservableGauge
	queue    metric.Int64ObservableGauge
	meter    metric.Meter
	watching metric.Registration
}

func newMetrics(cfg Config) (m metrics, err error) {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(scope)
	var errs []error
	seconds := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), durationBuckets)
		errs = append(errs, err)
		return h
	}
	sizes := func(name, unit, description string) metric.Int64Histogram {
		h, err := meter.Int64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description), countBuckets)
		errs = append(errs, err)
		return h
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		n, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return n
	}
	m = metrics{
		operations:  seconds("db.client.operation.duration", "Duration of requests to Bigtable."),
		oracle:      seconds("percolator.oracle.wait.duration", "How long callers waited for a timestamp."),
		duration:    seconds("percolator.transaction.duration", "Duration of read-write transactions, from start_ts to outcome; each attempt is one."),
		rows:        sizes("percolator.transaction.rows", "{row}", "Rows that a transaction wrote."),
		requests:    sizes("percolator.transaction.requests", "{request}", "Requests to Bigtable that a transaction's caller waited for."),
		retries:     counter("percolator.transaction.retries", "{retry}", "Reruns of functions given to Update."),
		conflicts:   counter("percolator.transaction.conflicts", "{conflict}", "Transactions that failed because of another one."),
		lockWait:    seconds("percolator.lock.wait.duration", "How long somebody else's lock held a read or prewrite up."),
		latchWait:   seconds("percolator.latch.wait.duration", "How long a commit, or a run after a conflict, waited for another transaction of its client that writes the same cells."),
		resolutions: counter("percolator.lock.resolutions", "{cell}", "Cells settled on behalf of other transactions."),
		dropped:     counter("percolator.background.dropped", "{row}", "Rows of background work that were given up and left to whoever meets their locks."),
	}
	m.batchRows = sizes("percolator.background.batch.rows", "{row}", "Rows in a request of the background, of one or many transactions.")
	m.strandedAge, err = meter.Float64Histogram("percolator.lock.stranded.age", metric.WithUnit("s"), metric.WithDescription("Age, in oracle time, of locks whose owner was found dead."), metric.WithExplicitBucketBoundaries(1, 5, 10, 30, 60, 300, 900, 3600, 6*3600, 24*3600))
	errs = append(errs, err)
	m.gc, err = newGCMetrics(meter)
	errs = append(errs, err)
	m.reads, err = newReadMetrics(meter)
	errs = append(errs, err)
	m.oldest = &oldest{}
	m.age, err = meter.Float64ObservableGauge("percolator.lock.oldest.age", metric.WithUnit("s"), metric.WithDescription("Age, in oracle time, of the oldest stranded lock that was met in the last minute or two; 0: none."))
	errs = append(errs, err)
	m.meter = meter
	m.queue, err = meter.Int64ObservableGauge("percolator.background.queue", metric.WithUnit("{change}"), metric.WithDescription("Changes of cells that wait for background work."))
	return m, errors.Join(append(errs, err)...)
}

// watch measures what is there rather than what happens, until close.
func (m *metrics) watch(c *Client) (err error) {
	// From nothing to the first one is no increase to Prometheus; from 0 it is.
	m.dropped.Add(context.Background(), 0)
	m.watching, err = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		cells, _ := c.background.queued()
		o.ObserveInt64(m.queue, int64(cells))
		o.ObserveFloat64(m.age, m.oldest.read(time.Now()).Seconds())
		m.gc.observe(o, c)
		return nil
	}, m.queue, m.age, m.gc.age)
	return err
}

func (m *metrics) close() error { return m.watching.Unregister() }

// operation measures one request to Bigtable.
func (m *metrics) operation(ctx context.Context, operation, table string, began time.Time, err error) {
	if n, ok := ctx.Value(requestsKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	if !m.operations.Enabled(ctx) {
		return
	}
	attrs := []attribute.KeyValue{semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBOperationName(operation), semconv.DBCollectionName(table)}
	if err != nil {
		attrs = append(attrs, semconv.ErrorTypeKey.String(errorType(err)))
	}
	m.operations.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attrs...))
}

// requestsKey finds the count of a transaction's requests in its context.
type requestsKey struct{}

// counting returns ctx such that requests are counted for t, if somebody
// measures that.
func (m *metrics) counting(ctx context.Context, t *Txn) context.Context {
	if !m.requests.Enabled(ctx) || ctx.Value(requestsKey{}) == &t.requests {
		return ctx
	}
	return context.WithValue(ctx, requestsKey{}, &t.requests)
}

// timestamp measures one question to the oracle.
func (m *metrics) timestamp(ctx context.Context, began time.Time, err error) {
	if !m.oracle.Enabled(ctx) {
		return
	}
	var attrs []attribute.KeyValue
	if err != nil {
		attrs = append(attrs, semconv.ErrorTypeKey.String(errorType(err)))
	}
	m.oracle.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attrs...))
}

// transaction measures one attempt of a transaction.
func (m *metrics) transaction(ctx context.Context, t *Txn, outcome string, rows int) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, time.Since(t.begun).Seconds(), metric.WithAttributes(attrName.String(t.opts.name), attrOutcome.String(outcome)))
	}
	if rows > 0 && m.rows.Enabled(ctx) {
		m.rows.Record(ctx, int64(rows), metric.WithAttributes(attrName.String(t.opts.name)))
	}
	if m.requests.Enabled(ctx) {
		m.requests.Record(ctx, t.requests.Load(), metric.WithAttributes(attrName.String(t.opts.name), attrOutcome.String(outcome)))
	}
}

func (m *metrics) conflict(ctx context.Context, err error) {
	var c *ConflictError
	if !m.conflicts.Enabled(ctx) || !errors.As(err, &c) {
		return
	}
	m.conflicts.Add(ctx, 1, metric.WithAttributes(semconv.DBCollectionName(c.Cell.Table), attrFamily.String(c.Cell.Family),
		attrQualifier.String(strings.ToValidUTF8(c.Cell.Qualifier, "\uFFFD")), attrReason.String(string(c.Reason))))
}

func (m *metrics) retry(ctx context.Context, name string) {
	if m.retries.Enabled(ctx) {
		m.retries.Add(ctx, 1, metric.WithAttributes(attrName.String(name)))
	}
}

func (m *metrics) waited(ctx context.Context, table string, began time.Time) {
	if m.lockWait.Enabled(ctx) {
		m.lockWait.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(semconv.DBCollectionName(table)))
	}
}

func (m *metrics) latched(ctx context.Context, began time.Time) {
	if m.latchWait.Enabled(ctx) {
		m.latchWait.Record(ctx, time.Since(began).Seconds())
	}
}

func (m *metrics) resolved(l *Lock, action string) {
	ctx := context.Background()
	if m.resolutions.Enabled(ctx) {
		m.resolutions.Add(ctx, 1, metric.WithAttributes(semconv.DBCollectionName(l.Cell.Table), attrAction.String(action)))
	}
}
