package gc

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// attrSafePoint is the safe point of a run.
const attrSafePoint = attribute.Key("percolator.safe_point")

// The outcomes of a run.
const (
	outcomeDone        = "done"
	outcomeFailed      = "failed"
	outcomeNothing     = "nothing to do"
	outcomeBlocked     = "blocked"
	outcomeLost        = "lease lost"
	outcomeInterrupted = "interrupted"
)

// metrics are the instruments of garbage collection.
type metrics struct {
	duration metric.Float64Histogram
	versions metric.Int64Counter
	cells    metric.Int64Counter
	bytes    metric.Int64Counter
	locks    metric.Int64Counter
	skipped  metric.Int64Counter
}

func newMetrics(provider metric.MeterProvider) (metrics, error) {
	in := instrument.New(provider, telemetry.Scope)
	m := metrics{
		versions: in.Counter("percolator.gc.reclaimed.versions", "{version}", "Committed values and deletes that garbage collection removed."),
		cells:    in.Counter("percolator.gc.reclaimed.cells", "{cell}", "Bigtable cells that garbage collection removed: write records, data, marks."),
		bytes:    in.Counter("percolator.gc.reclaimed.bytes", "By", "Lengths of the values and qualifiers of these cells, before compression."),
		locks:    in.Counter("percolator.gc.locks", "{lock}", "Locks at or below the safe point that garbage collection found, by what it did with them."),
		skipped:  in.Counter("percolator.gc.rows.skipped", "{row}", "Rows that garbage collection could not collect. percctl gc status names them and says why."),
		// From a run with nothing to do, over the fence of two minutes, to large tables.
		duration: in.Seconds("percolator.gc.run.duration", "Duration of runs of garbage collection.", 1, 10, 60, 150, 300, 600, 1800, 3600, 3*3600, 6*3600, 12*3600, 24*3600),
	}
	return m, in.Err()
}

// page counts what was removed from some rows of a table. It also counts 0, which
// creates the series: Prometheus sees no increase in the first value of a series.
func (m *metrics) page(ctx context.Context, table string, done Counts) {
	ctx = context.WithoutCancel(ctx) // removed cells count even if the run was interrupted
	for _, c := range []struct {
		counter metric.Int64Counter
		n       int64
	}{{m.versions, done.Versions}, {m.cells, done.Cells}, {m.bytes, done.Bytes}, {m.skipped, done.RowsSkipped}} {
		if c.counter.Enabled(ctx) {
			c.counter.Add(ctx, c.n, metric.WithAttributes(semconv.DBCollectionName(table)))
		}
	}
}

// lock counts locks by what the run did with them.
func (m *metrics) lock(ctx context.Context, action string, n int64) {
	if ctx = context.WithoutCancel(ctx); n > 0 && m.locks.Enabled(ctx) {
		m.locks.Add(ctx, n, metric.WithAttributes(telemetry.AttrAction.String(action)))
	}
}

// ran counts a run by its outcome.
func (m *metrics) ran(ctx context.Context, s telemetry.Span, report *Report, err error) {
	outcome := outcome(report, err)
	if s.Recording() {
		s.Set(telemetry.AttrOutcome.String(outcome), attrSafePoint.Int64(int64(report.SafePoint)), telemetry.AttrRows.Int64(report.Total.Rows))
	}
	if ctx = context.WithoutCancel(ctx); m.duration.Enabled(ctx) {
		m.duration.Record(ctx, report.Elapsed.Seconds(), metric.WithAttributes(telemetry.AttrOutcome.String(outcome)))
	}
}

func outcome(report *Report, err error) string {
	var blocked *BlockedError
	var busy *BusyError
	switch {
	case err == nil && report.Nothing:
		return outcomeNothing
	case err == nil:
		return outcomeDone
	case errors.As(err, &busy):
		return outcomeLost
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcomeInterrupted
	case errors.As(err, &blocked):
		return outcomeBlocked
	}
	return outcomeFailed
}
