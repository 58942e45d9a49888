package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// WithTraceIDs returns a logger that adds trace_id and span_id to each record
// whose context is in a trace. [Config.Logger] and those of observers' workers
// are wrapped in it already; an application may wrap its own.
func WithTraceIDs(l *slog.Logger) *slog.Logger { return slog.New(traceHandler{l.Handler()}) }

type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && !sc.Equal(Quiet.SpanContext()) {
		r = r.Clone() // other handlers may hold it too
		r.AddAttrs(slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
