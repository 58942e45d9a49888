package txn

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// The outcomes of a transaction.
const (
	outcomeCommitted    = "committed"
	outcomeReadOnly     = "read only"
	outcomeRolledBack   = "rolled back"
	outcomeConflict     = "conflict"
	outcomeUndetermined = "undetermined"
	outcomeFailed       = "failed"
)

// transactionMetrics are the instruments of transactions (docs/observability.md lists
// them).
type transactionMetrics struct {
	duration  metric.Float64Histogram
	rows      metric.Int64Histogram
	requests  metric.Int64Histogram
	retries   metric.Int64Counter
	conflicts metric.Int64Counter
	latchWait metric.Float64Histogram
}

func newTransactionMetrics(provider metric.MeterProvider) (transactionMetrics, error) {
	in := instrument.New(provider, telemetry.Scope)
	m := transactionMetrics{
		duration:  in.Seconds("percolator.transaction.duration", "Duration of read-write transactions, from start_ts to outcome; each attempt is one."),
		rows:      in.Sizes("percolator.transaction.rows", "{row}", "Rows that a transaction wrote."),
		requests:  in.Sizes("percolator.transaction.requests", "{request}", "Requests to Bigtable that a transaction's caller waited for."),
		retries:   in.Counter("percolator.transaction.retries", "{retry}", "Reruns of functions given to Update."),
		conflicts: in.Counter("percolator.transaction.conflicts", "{conflict}", "Transactions that failed because of a conflict with another one."),
		latchWait: in.Seconds("percolator.latch.wait.duration", "How long a commit, or a run after a conflict, waited for another transaction of its client that writes the same cells."),
	}
	return m, in.Err()
}

// transaction records one attempt of a transaction.
func (m *transactionMetrics) transaction(ctx context.Context, name string, begun time.Time, requests int64, outcome string, rows int) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, time.Since(begun).Seconds(), metric.WithAttributes(telemetry.AttrName.String(name), telemetry.AttrOutcome.String(outcome)))
	}
	if rows > 0 && m.rows.Enabled(ctx) {
		m.rows.Record(ctx, int64(rows), metric.WithAttributes(telemetry.AttrName.String(name)))
	}
	if m.requests.Enabled(ctx) {
		m.requests.Record(ctx, requests, metric.WithAttributes(telemetry.AttrName.String(name), telemetry.AttrOutcome.String(outcome)))
	}
}

func (m *transactionMetrics) conflict(ctx context.Context, err error) {
	var c *ConflictError
	if !m.conflicts.Enabled(ctx) || !errors.As(err, &c) {
		return
	}
	m.conflicts.Add(ctx, 1, metric.WithAttributes(semconv.DBCollectionName(c.Cell.Table), telemetry.AttrFamily.String(c.Cell.Family),
		telemetry.AttrQualifier.String(strings.ToValidUTF8(c.Cell.Qualifier, "\uFFFD")), telemetry.AttrReason.String(string(c.Reason))))
}

func (m *transactionMetrics) retry(ctx context.Context, name string) {
	if m.retries.Enabled(ctx) {
		m.retries.Add(ctx, 1, metric.WithAttributes(telemetry.AttrName.String(name)))
	}
}

func (m *transactionMetrics) latchWaited(ctx context.Context, began time.Time) {
	if m.latchWait.Enabled(ctx) {
		m.latchWait.Record(ctx, time.Since(began).Seconds())
	}
}
