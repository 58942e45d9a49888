package txn

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
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

func newReadMetrics(provider metric.MeterProvider) (readMetrics, error) {
	in := instrument.New(provider, telemetry.Scope)
	m := readMetrics{
		cells:  in.Counter("percolator.prefetch.cells", "{cell}", "Cells that were read ahead, and those of them that were asked for later."),
		batch:  in.Sizes("percolator.read.batch.size", "{read}", "Point reads that shared one request."),
		oracle: in.Counter("percolator.oracle.saved", "{timestamp}", "Snapshots and transactions that did not wait for a timestamp."),
	}
	return m, in.Err()
}

// prefetched counts cells that were read ahead, or used.
func (m *readMetrics) prefetched(table, outcome string, n int64) {
	if ctx := context.Background(); n > 0 && m.cells.Enabled(ctx) {
		m.cells.Add(ctx, n, metric.WithAttributes(semconv.DBCollectionName(table), telemetry.AttrOutcome.String(outcome)))
	}
}

func (m *readMetrics) batchSent(ctx context.Context, table string, n int) {
	if m.batch.Enabled(ctx) {
		m.batch.Record(ctx, int64(n), metric.WithAttributes(semconv.DBCollectionName(table)))
	}
}

// timestampReused counts a timestamp that was there already, and why.
func (m *readMetrics) timestampReused(ctx context.Context, reason string) {
	if m.oracle.Enabled(ctx) {
		m.oracle.Add(ctx, 1, metric.WithAttributes(attrSource.String(reason)))
	}
}
