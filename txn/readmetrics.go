package txn

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

const (
	attrPrefetched   = attribute.Key("percolator.prefetch.cells")
	attrPrefetchUsed = attribute.Key("percolator.prefetch.used")
	attrSource       = attribute.Key("percolator.source")
)

// readMetrics measure what saves reads their round trips.
type readMetrics struct {
	cells  metric.Int64Counter
	batch  metric.Int64Histogram
	oracle metric.Int64Counter
}

func newReadMetrics(meter metric.Meter) (m readMetrics, err error) {
	var errs [3]error
	m.cells, errs[0] = meter.Int64Counter("percolator.prefetch.cells", metric.WithUnit("{cell}"), metric.WithDescription("Cells that were read ahead, and those of them that were asked for later."))
	m.batch, errs[1] = meter.Int64Histogram("percolator.read.batch.size", metric.WithUnit("{read}"), metric.WithDescription("Point reads that shared one request."), countBuckets)
	m.oracle, errs[2] = meter.Int64Counter("percolator.oracle.saved", metric.WithUnit("{timestamp}"), metric.WithDescription("Snapshots and transactions that did not wait for a timestamp."))
	return m, errors.Join(errs[:]...)
}

// prefetched counts cells that were read ahead, or used.
func (m *readMetrics) prefetched(table, outcome string, n int64) {
	if ctx := context.Background(); n > 0 && m.cells.Enabled(ctx) {
		m.cells.Add(ctx, n, metric.WithAttributes(semconv.DBCollectionName(table), attrOutcome.String(outcome)))
	}
}

func (m *readMetrics) joined(ctx context.Context, table string, n int) {
	if m.batch.Enabled(ctx) {
		m.batch.Record(ctx, int64(n), metric.WithAttributes(semconv.DBCollectionName(table)))
	}
}

// saved counts a timestamp that was there already, and why.
func (m *readMetrics) saved(ctx context.Context, reason string) {
	if m.oracle.Enabled(ctx) {
		m.oracle.Add(ctx, 1, metric.WithAttributes(attrSource.String(reason)))
	}
}
