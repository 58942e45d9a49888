package txn

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/recovery"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// BenchmarkWithoutSDK measures what telemetry costs a transaction if the process has no
// OpenTelemetry SDK. It makes every telemetry call of a transaction with two reads and two
// rows, and nothing else. The rest of such a transaction takes at least a millisecond.
func BenchmarkWithoutSDK(b *testing.B) {
	m, err := telemetry.NewMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	measure, err := telemetry.NewTransactions(nil)
	if err != nil {
		b.Fatal(err)
	}
	log := WithTraceIDs(slog.New(slog.DiscardHandler))
	c := &Client{resolver: &recovery.Resolver{Store: &store.Store{Trace: telemetry.NewTracing(nil, false), Metrics: m, Log: log}}, metrics: measure}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		t := &Txn{client: c, began: time.Now(), opts: txnOptions{name: "transfer"}}
		t.span, t.contextSpan = c.resolver.Trace.Transaction(ctx, t.opts.name, 1, new(trace.SpanContext))
		step := func(ctx context.Context, operation string, requests int) {
			ctx, s := c.resolver.Trace.Begin(t.withTrace(ctx), operation, "accounts")
			for range requests {
				c.resolver.Metrics.Operation(ctx, operation, "accounts", time.Now(), nil)
			}
			s.EndWith(nil)
		}
		for range 2 { // timestamps
			step(ctx, "timestamp", 0)
			c.resolver.Metrics.Timestamp(ctx, time.Now(), nil)
		}
		for _, operation := range []string{"read", "read", "commit", "prewrite", "prewrite", "commit primary"} {
			step(ctx, operation, 1)
		}
		c.resolver.Trace.Secondaries(ctx, 1).Done(1)
		format.TraceParent(ctx)
		t.measureEnd(ctx, telemetry.OutcomeCommitted, 2, nil)
	}
}
