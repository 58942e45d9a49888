package telemetry

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// Metrics are the instruments of one client.
type Metrics struct {
	operations  metric.Float64Histogram // every request to Bigtable
	oracle      metric.Float64Histogram
	lockWait    metric.Float64Histogram
	resolutions metric.Int64Counter
	dropped     metric.Int64Counter
	batchRows   metric.Int64Histogram
	strandedAge metric.Float64Histogram

	// Gauges, which Watch feeds.
	safePointAge metric.Float64ObservableGauge
	oldestAge    metric.Float64ObservableGauge
	queue        metric.Int64ObservableGauge

	oldest   *oldest
	meter    metric.Meter
	watching metric.Registration
}

// NewMetrics makes the instruments. A nil provider stands for the global one.
func NewMetrics(provider metric.MeterProvider) (Metrics, error) {
	in := instrument.New(provider, Scope)
	m := Metrics{
		operations:  in.Seconds("db.client.operation.duration", "Duration of requests to Bigtable."),
		oracle:      in.Seconds("percolator.oracle.wait.duration", "How long callers waited for a timestamp."),
		lockWait:    in.Seconds("percolator.lock.wait.duration", "How long another client's lock held up a read or prewrite."),
		resolutions: in.Counter("percolator.lock.resolutions", "{cell}", "Cells rolled forward or back on behalf of other transactions."),
		dropped:     in.Counter("percolator.background.dropped", "{row}", "Rows of background work that this client gave up. Readers resolve their locks."),
		batchRows:   in.Sizes("percolator.background.batch.rows", "{row}", "Rows in a background request, of one or many transactions."),
		strandedAge: in.Seconds("percolator.lock.stranded.age", "Age, in oracle time, of locks whose owner was found dead.", 1, 5, 10, 30, 60, 300, 900, 3600, 6*3600, 24*3600),

		safePointAge: in.SecondsGauge("percolator.gc.safe_point.age", "Age, in oracle time, of the safe point that this client uses. Absent before the first garbage collection."),
		oldestAge:    in.SecondsGauge("percolator.lock.oldest.age", "Age, in oracle time, of the oldest stranded lock that this client found in the last minute or two; 0: none."),
		queue:        in.Gauge("percolator.background.queue", "{change}", "Changes of cells that wait for background work."),

		oldest: &oldest{},
		meter:  in.Meter,
	}
	return m, in.Err()
}

// Watch feeds the gauges until Close. queued returns how many changes of cells wait for
// background work. safePointAge returns the age of the safe point; 0 means that it is not
// known.
func (m *Metrics) Watch(queued func() int, safePointAge func() time.Duration) (err error) {
	// A counter that appears with 1 shows no increase in Prometheus. From 0 to 1 it does.
	m.dropped.Add(context.Background(), 0)
	m.watching, err = m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(m.queue, int64(queued()))
		o.ObserveFloat64(m.oldestAge, m.oldest.read(time.Now()).Seconds())
		if age := safePointAge(); age != 0 {
			o.ObserveFloat64(m.safePointAge, age.Seconds())
		}
		return nil
	}, m.queue, m.oldestAge, m.safePointAge)
	return err
}

// Close ends Watch.
func (m *Metrics) Close() error { return m.watching.Unregister() }

// Operation records one request to Bigtable that began at began.
func (m *Metrics) Operation(ctx context.Context, operation, table string, began time.Time, err error) {
	if w, ok := ctx.Value(workKey{}).(*Work); ok {
		w.Requests.Add(1)
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

// Work counts what a transaction's caller waited for.
type Work struct {
	Requests atomic.Int64 // to Bigtable
	LockWait atomic.Int64 // in nanoseconds
}

// workKey is the context key of a transaction's Work.
type workKey struct{}

// CountWork returns a context in which every request to Bigtable and every wait for a lock counts
// in w.
func CountWork(ctx context.Context, w *Work) context.Context {
	if ctx.Value(workKey{}) == w {
		return ctx
	}
	return context.WithValue(ctx, workKey{}, w)
}

// Timestamp records one request to the oracle that began at began.
func (m *Metrics) Timestamp(ctx context.Context, began time.Time, err error) {
	if !m.oracle.Enabled(ctx) {
		return
	}
	var attrs []attribute.KeyValue
	if err != nil {
		attrs = append(attrs, semconv.ErrorTypeKey.String(errorType(err)))
	}
	m.oracle.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attrs...))
}

// LockWait records how long a lock of another client held up a read or prewrite.
func (m *Metrics) LockWait(ctx context.Context, table string, began time.Time) {
	if w, ok := ctx.Value(workKey{}).(*Work); ok {
		w.LockWait.Add(int64(time.Since(began)))
	}
	if m.lockWait.Enabled(ctx) {
		m.lockWait.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(semconv.DBCollectionName(table)))
	}
}

// Resolved counts a cell that this client rolled forward or back. action says which.
func (m *Metrics) Resolved(l *format.Lock, action string) {
	ctx := context.Background()
	if m.resolutions.Enabled(ctx) {
		m.resolutions.Add(ctx, 1, metric.WithAttributes(semconv.DBCollectionName(l.Cell.Table), AttrAction.String(action)))
	}
}

// Batch records how many rows a background request has.
func (m *Metrics) Batch(rows int) {
	if ctx := context.Background(); m.batchRows.Enabled(ctx) {
		m.batchRows.Record(ctx, int64(rows))
	}
}

// BackgroundDropped counts rows of background work that the client gave up.
func (m *Metrics) BackgroundDropped(rows int) {
	if ctx := context.Background(); m.dropped.Enabled(ctx) {
		m.dropped.Add(ctx, int64(rows))
	}
}

// Listed records a lock that an operator has listed. It counts as stranded if it has
// expired. now is about the oracle's time; 0 means that it is not known.
func (m *Metrics) Listed(l *format.Lock, now tso.Timestamp) {
	if m.strandedAge.Enabled(context.Background()) && l.Expired(now) {
		m.oldest.note(time.Now(), now.Sub(l.StartTS))
	}
}

// Stranded records a lock whose owner this client found dead at oracle time now.
func (m *Metrics) Stranded(l *format.Lock, now tso.Timestamp) {
	ctx := context.Background()
	if !m.strandedAge.Enabled(ctx) {
		return
	}
	age := now.Sub(l.StartTS)
	m.strandedAge.Record(ctx, age.Seconds(), metric.WithAttributes(semconv.DBCollectionName(l.Cell.Table)))
	m.oldest.note(time.Now(), age)
}
