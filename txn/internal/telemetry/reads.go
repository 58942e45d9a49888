package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso/instrument"
)

const (
	AttrPrefetched   = attribute.Key("percolator.prefetch.cells")
	AttrPrefetchUsed = attribute.Key("percolator.prefetch.used")
	attrSource       = attribute.Key("percolator.source")
)

// Reads are the instruments of what saves round trips: prefetching, read batches, and
// timestamps that need no question to the oracle.
type Reads struct {
	cells  metric.Int64Counter
	batch  metric.Int64Histogram
	oracle metric.Int64Counter
}

// NewReads makes the instruments; a nil provider stands for the global one.
func NewReads(provider metric.MeterProvider) (Reads, error) {
	in := instrument.New(provider, Scope)
	m := Reads{
		cells:  in.Counter("percolator.prefetch.cells", "{cell}", "Cells that were prefetched (outcome read), and prefetched cells that a Get asked for later (outcome used)."),
		batch:  in.Sizes("percolator.read.batch.size", "{read}", "Point reads that shared one request."),
		oracle: in.Counter("percolator.oracle.saved", "{timestamp}", "Snapshots that did not wait for a timestamp."),
	}
	return m, in.Err()
}

// Prefetched counts n cells: outcome is "read" when they were prefetched, and "used" when a
// Get asked for one.
func (m *Reads) Prefetched(table, outcome string, n int64) {
	if ctx := context.Background(); n > 0 && m.cells.Enabled(ctx) {
		m.cells.Add(ctx, n, metric.WithAttributes(semconv.DBCollectionName(table), AttrOutcome.String(outcome)))
	}
}

// BatchSent counts a request that n point reads share.
func (m *Reads) BatchSent(ctx context.Context, table string, n int) {
	if m.batch.Enabled(ctx) {
		m.batch.Record(ctx, int64(n), metric.WithAttributes(semconv.DBCollectionName(table)))
	}
}

// TimestampReused counts a transaction or snapshot that did not wait for the oracle. source
// says which kind.
func (m *Reads) TimestampReused(ctx context.Context, source string) {
	if m.oracle.Enabled(ctx) {
		m.oracle.Add(ctx, 1, metric.WithAttributes(attrSource.String(source)))
	}
}
