package format

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestTraceParent: locks and notify cells store the context of a recorded trace and of no
// other. A link to an unrecorded trace would lead to nothing.
func TestTraceParent(t *testing.T) {
	sc := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}}
	ctx := trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(sc))
	if got := TraceParent(ctx); got != "" {
		t.Errorf("%q for a trace that is not sampled", got)
	}
	sc.TraceFlags = trace.FlagsSampled
	want := trace.NewSpanContext(sc)
	got := TraceParent(trace.ContextWithSpanContext(context.Background(), want))
	if back := ParseTraceParent(got); back.TraceID() != want.TraceID() || back.SpanID() != want.SpanID() || !back.IsSampled() {
		t.Errorf("%q reads back as %v, want %v", got, back, want)
	}
	for _, bad := range []string{"", "x", "00-zz-00-01", got + "0"} {
		if ParseTraceParent(bad).IsValid() {
			t.Errorf("%q parses as a trace context", bad)
		}
	}
}
