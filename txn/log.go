package txn

import (
	"context"
	"errors"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// WithTraceIDs returns a logger that adds trace_id and span_id to each record
// whose context is in a trace. [Config.Logger] and those of observers' workers
// are wrapped in it already; an application may wrap its own.
func WithTraceIDs(l *slog.Logger) *slog.Logger { return slog.New(traceHandler{l.Handler()}) }

type traceHandler struct{ slog.Handler }

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() && !sc.Equal(quiet.SpanContext()) {
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

// conflicted records a transaction that failed because of another one: the
// metric, and the collision log, which names the cells.
func (c *Client) conflicted(ctx context.Context, name string, err error) {
	c.measure.conflict(ctx, err)
	var e *ConflictError
	if !errors.As(err, &e) || !c.log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	c.log.DebugContext(ctx, "collision", "transaction", name, "cell", e.Cell, "reason", e.Reason, "start_ts", e.StartTS, "conflict_ts", e.ConflictTS)
}
