package txn

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// BenchmarkWithoutSDK is what the telemetry of a transaction costs where there
// is no SDK: every call that one with two reads and two rows makes, without the
// rest. The rest takes a millisecond where Bigtable is near.
func BenchmarkWithoutSDK(b *testing.B) {
	m, err := newMetrics(storeConfig{})
	if err != nil {
		b.Fatal(err)
	}
	measure, err := newTransactionMetrics(nil)
	if err != nil {
		b.Fatal(err)
	}
	log := WithTraceIDs(slog.New(slog.DiscardHandler))
	c := &Client{resolver: &resolver{store: &store{trace: newTracing(storeConfig{}), metrics: m, log: log}}, measure: measure}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		t := &Txn{client: c, begun: time.Now(), opts: txnOptions{name: "transfer"}}
		t.span, t.carried = c.trace.transaction(ctx, t.opts.name, 1, new(trace.SpanContext))
		step := func(ctx context.Context, operation string, requests int) {
			ctx, s := c.trace.begin(t.within(ctx), operation, "accounts")
			for range requests {
				c.metrics.operation(ctx, operation, "accounts", time.Now(), nil)
			}
			s.end(nil)
		}
		for range 2 { // timestamps
			step(ctx, "timestamp", 0)
			c.metrics.timestamp(ctx, time.Now(), nil)
		}
		for _, operation := range []string{"read", "read", "commit", "prewrite", "prewrite", "commit primary"} {
			step(ctx, operation, 1)
		}
		c.trace.secondaries(ctx, 1).done(1)
		traceParent(ctx)
		t.over(ctx, outcomeCommitted, 2, nil)
	}
}
