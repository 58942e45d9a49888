package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// WithTraceIDs returns a logger that adds trace_id and span_id to each record whose
// context is in a trace. Package txn wraps Config.Logger and the loggers of observers'
// workers already. An application may wrap its own.
func WithTraceIDs(l *slog.Logger) *slog.Logger { return slog.New(traceHandler{l.Handler()}) }

type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && !sc.Equal(Quiet.SpanContext()) {
		r = r.Clone() // other handlers may keep the record
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
