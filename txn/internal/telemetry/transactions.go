package telemetry

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// The outcomes of a transaction.
const (
	OutcomeCommitted    = "committed"
	OutcomeReadOnly     = "read only"
	OutcomeRolledBack   = "rolled back"
	OutcomeConflict     = "conflict"
	OutcomeUndetermined = "undetermined"
	OutcomeFailed       = "failed"
)

// Transactions are the instruments of transactions (docs/observability.md lists
// them).
type Transactions struct {
	duration  metric.Float64Histogram
	rows      metric.Int64Histogram
	requests  metric.Int64Histogram
	retries   metric.Int64Counter
	conflicts metric.Int64Counter
	latchWait metric.Float64Histogram
}

// NewTransactions makes the instruments; a nil provider stands for the global one.
func NewTransactions(provider metric.MeterProvider) (Transactions, error) {
	in := instrument.New(provider, Scope)
	m := Transactions{
		duration:  in.Seconds("percolator.transaction.duration", "Duration of read-write transactions, from start_ts to outcome; each attempt is one."),
		rows:      in.Sizes("percolator.transaction.rows", "{row}", "Rows that a transaction wrote."),
		requests:  in.Sizes("percolator.transaction.requests", "{request}", "Requests to Bigtable that a transaction's caller waited for."),
		retries:   in.Counter("percolator.transaction.retries", "{retry}", "Reruns of functions given to Update."),
		conflicts: in.Counter("percolator.transaction.conflicts", "{conflict}", "Transactions that failed because of a conflict with another one."),
		latchWait: in.Seconds("percolator.latch.wait.duration", "How long a commit, or a run after a conflict, waited for another transaction of its client that writes the same cells."),
	}
	return m, in.Err()
}

// Ended records one attempt of a transaction.
func (m *Transactions) Ended(ctx context.Context, name string, begun time.Time, requests int64, outcome string, rows int) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, time.Since(begun).Seconds(), metric.WithAttributes(AttrName.String(name), AttrOutcome.String(outcome)))
	}
	if rows > 0 && m.rows.Enabled(ctx) {
		m.rows.Record(ctx, int64(rows), metric.WithAttributes(AttrName.String(name)))
	}
	if m.requests.Enabled(ctx) {
		m.requests.Record(ctx, requests, metric.WithAttributes(AttrName.String(name), AttrOutcome.String(outcome)))
	}
}

// Conflict counts an attempt that failed because of a conflict.
func (m *Transactions) Conflict(ctx context.Context, err error) {
	var c *format.ConflictError
	if !m.conflicts.Enabled(ctx) || !errors.As(err, &c) {
		return
	}
	m.conflicts.Add(ctx, 1, metric.WithAttributes(semconv.DBCollectionName(c.Cell.Table), AttrFamily.String(c.Cell.Family),
		AttrQualifier.String(strings.ToValidUTF8(c.Cell.Qualifier, "\uFFFD")), AttrReason.String(string(c.Reason))))
}

// Retry counts a rerun of a function given to Update.
func (m *Transactions) Retry(ctx context.Context, name string) {
	if m.retries.Enabled(ctx) {
		m.retries.Add(ctx, 1, metric.WithAttributes(AttrName.String(name)))
	}
}

// LatchWaited records how long a transaction waited for its turn.
func (m *Transactions) LatchWaited(ctx context.Context, began time.Time) {
	if m.latchWait.Enabled(ctx) {
		m.latchWait.Record(ctx, time.Since(began).Seconds())
	}
}

// CountsRequests reports whether a reader of the metrics wants the number of requests.
func (m *Transactions) CountsRequests(ctx context.Context) bool { return m.requests.Enabled(ctx) }
