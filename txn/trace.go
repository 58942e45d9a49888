package txn

import (
	"context"
	"errors"
	"reflect"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"
)

// This file makes the spans of transactions (docs/observability.md lists them).
// Where nothing records, nothing is made: a transaction asks the tracer once,
// and everything below it asks its parent.

// scope names this library to OpenTelemetry.
const scope = "github.com/percolator-bigtable/percolator/txn"

// The attributes of spans, events and metrics that are not OpenTelemetry's own.
const (
	attrName       = attribute.Key("percolator.transaction.name")
	attrStartTS    = attribute.Key("percolator.start_ts")
	attrCommitTS   = attribute.Key("percolator.commit_ts")
	attrReadTS     = attribute.Key("percolator.read_ts")
	attrAttempt    = attribute.Key("percolator.attempt")
	attrOutcome    = attribute.Key("percolator.outcome")
	attrRows       = attribute.Key("percolator.rows")
	attrCells      = attribute.Key("percolator.cells")
	attrFamily     = attribute.Key("percolator.family")
	attrQualifier  = attribute.Key("percolator.qualifier")
	attrRow        = attribute.Key("percolator.row")
	attrReason     = attribute.Key("percolator.conflict.reason")
	attrConflictTS = attribute.Key("percolator.conflict.ts")
	attrAction     = attribute.Key("percolator.lock.action")
	attrLockTS     = attribute.Key("percolator.lock.start_ts")
	attrLockOwner  = attribute.Key("percolator.lock.owner")
	attrLocks      = attribute.Key("percolator.locks")
)

// tracing makes spans.
type tracing struct {
	tracer trace.Tracer
	// rowKeys lets spans name rows.
	rowKeys bool
	// placeholder is OpenTelemetry's global provider as long as there is no SDK;
	// nil where the provider was given or there is one.
	placeholder trace.TracerProvider
}

func newTracing(cfg storeConfig) tracing {
	provider := cfg.TracerProvider
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	t := tracing{tracer: provider.Tracer(scope), rowKeys: cfg.TraceRowKeys}
	if p := reflect.TypeOf(provider); cfg.TracerProvider == nil && p.Kind() == reflect.Pointer && p.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global" {
		t.placeholder = provider
	}
	return t
}

// off reports that there is no SDK: what its tracer makes then is nothing, but
// costs five allocations.
func (t tracing) off() bool { return t.placeholder != nil && t.placeholder == otel.GetTracerProvider() }

// A span is a part of the work on a trace. The zero span is none: nothing
// records.
type span struct{ trace.Span }

func (s span) on() bool { return s.Span != nil }

// end ends the span, with the error that it ended in.
func (s span) end(err error) {
	if !s.on() {
		return
	}
	if err != nil {
		// Not the error's text: it may name rows.
		s.SetStatus(codes.Error, errorType(err))
		s.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	}
	s.End()
}

func (s span) set(attrs ...attribute.KeyValue) {
	if s.on() {
		s.SetAttributes(attrs...)
	}
}

// root begins a span whether or not its parent records. Where a sampler has
// decided against it, the context that is returned says so: what the Bigtable
// client and gRPC begin below it must not become traces of their own.
func (t tracing) root(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, span) {
	if t.off() {
		return ctx, span{}
	}
	sctx, s := t.tracer.Start(ctx, name, opts...)
	switch {
	case s.IsRecording():
		return sctx, span{s}
	case s.SpanContext().Equal(trace.SpanContextFromContext(ctx)):
		return ctx, span{} // there is no SDK
	}
	return sctx, span{}
}

// begin begins a request, or a group of them, as part of what records already.
// Its name is the operation and the table, which may be empty.
func (t tracing) begin(ctx context.Context, operation, table string) (context.Context, span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, span{}
	}
	return t.root(ctx, spanName(operation, table), request(operation, table)...)
}

// read begins a read outside of a transaction, which may be a trace of its own.
func (t tracing) read(ctx context.Context, table string, ts tso.Timestamp) (context.Context, span) {
	if t.off() {
		return ctx, span{}
	}
	ctx, s := t.root(ctx, spanName("read", table), clientKind)
	if s.on() {
		s.set(append(requestAttrs("read", table), attrReadTS.Int64(int64(ts)))...)
	}
	return ctx, s
}

func spanName(operation, table string) string {
	if table == "" {
		return operation
	}
	return operation + " " + table
}

var clientKind = trace.WithSpanKind(trace.SpanKindClient)

func requestAttrs(operation, table string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBOperationName(operation)}
	if table != "" {
		attrs = append(attrs, semconv.DBCollectionName(table))
	}
	return attrs
}

func request(operation, table string) []trace.SpanStartOption {
	return []trace.SpanStartOption{clientKind, trace.WithAttributes(requestAttrs(operation, table)...)}
}

// transaction begins the span of one attempt of a transaction, linked to that of the
// attempt before, which it replaces in earlier. carried is what
// has to be in the contexts of its requests: the span, also one that does not
// record; nil where there is no SDK.
func (t tracing) transaction(ctx context.Context, name string, number int, earlier *trace.SpanContext, opts ...trace.SpanStartOption) (s span, carried trace.Span) {
	if t.off() {
		return span{}, nil
	}
	title := "transaction"
	if name != "" {
		title += " " + name
	}
	if earlier.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: *earlier}))
	}
	sctx, s := t.root(ctx, title, opts...)
	if sctx == ctx {
		return span{}, nil
	}
	if s.on() {
		s.SetAttributes(attrName.String(name), attrAttempt.Int(number))
		*earlier = s.SpanContext()
	}
	return s, trace.SpanFromContext(sctx)
}

// conflict adds the event of a conflict to whatever span ctx is in.
func (t tracing) conflict(ctx context.Context, err error) {
	var c *ConflictError
	s := trace.SpanFromContext(ctx)
	if !s.IsRecording() || !errors.As(err, &c) {
		return
	}
	attrs := append(t.cell(c.Cell), attrReason.String(string(c.Reason)), attrStartTS.Int64(int64(c.StartTS)))
	if c.ConflictTS != 0 {
		attrs = append(attrs, attrConflictTS.Int64(int64(c.ConflictTS)))
	}
	s.AddEvent("conflict", trace.WithAttributes(attrs...))
}

// retry adds the event of a function's next run to the caller's span.
func (t tracing) retry(ctx context.Context, name string, next int, err error) {
	s := trace.SpanFromContext(ctx)
	if s.IsRecording() {
		s.AddEvent("retry", trace.WithAttributes(attrName.String(name), attrAttempt.Int(next), semconv.ErrorTypeKey.String(errorType(err))))
	}
}

// cell names a cell's class; its row only when that was asked for.
func (t tracing) cell(c Cell) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.DBCollectionName(c.Table), attrFamily.String(c.Family), attrQualifier.String(strings.ToValidUTF8(c.Qualifier, "\uFFFD"))}
	if t.rowKeys {
		attrs = append(attrs, attrRow.String(escape(c.Row, false)))
	}
	return attrs
}

// resolve begins the work on another transaction's lock, linked to the trace
// of the client that left it.
func (t tracing) resolve(ctx context.Context, l *Lock) (context.Context, span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		if ctx = beginDeferred(ctx); !trace.SpanFromContext(ctx).IsRecording() {
			return ctx, span{}
		}
	}
	return t.settle(ctx, l)
}

// settle is resolve for an operator's call, which may be a trace of its own.
func (t tracing) settle(ctx context.Context, l *Lock) (context.Context, span) {
	opts := []trace.SpanStartOption{clientKind}
	if sc := ParseTraceParent(l.TraceParent); sc.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc}))
	}
	ctx, s := t.root(ctx, spanName("resolve lock", l.Cell.Table), opts...)
	if s.on() {
		s.SetAttributes(semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBOperationName("resolve lock"))
		s.SetAttributes(t.cell(l.Cell)...)
		s.SetAttributes(attrLockTS.Int64(int64(l.StartTS)), attrLockOwner.String(l.Owner))
	}
	return ctx, s
}

// secondaries begins the span; it is the transaction's child and holds nothing
// open.
func (t tracing) secondaries(ctx context.Context, rows int) *secondaries {
	if rows == 0 || !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, s := t.begin(ctx, "commit secondaries", "")
	if !s.on() {
		return nil
	}
	s.set(attrRows.Int(rows))
	return &secondaries{span: s, left: rows}
}

// call begins an operator's call about one transaction or one table, which may
// be a trace of its own.
func (t tracing) call(ctx context.Context, operation, table string) (context.Context, span) {
	ctx, s := t.root(ctx, spanName(operation, table), clientKind)
	if s.on() {
		s.SetAttributes(requestAttrs(operation, table)...)
	}
	return ctx, s
}

// errorType is the low-cardinality name of an error.
func errorType(err error) string {
	var typed interface{ ErrorType() string }
	switch {
	case errors.As(err, &typed):
		return typed.ErrorType()
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	}
	return "_OTHER" // OpenTelemetry's word for it
}

// A deferredTrace is a trace that begins only when it becomes worth one.
type deferredTrace interface {
	// Begin begins it, and returns ctx with the span of the read that met a lock.
	Begin(ctx context.Context) context.Context
}

// deferredKey finds a deferredTrace in a context.
type deferredKey struct{}

// withDeferred returns ctx such that a lock that is met in it begins d.
func withDeferred(ctx context.Context, d deferredTrace) context.Context {
	return context.WithValue(ctx, deferredKey{}, d)
}

func beginDeferred(ctx context.Context) context.Context {
	if d, ok := ctx.Value(deferredKey{}).(deferredTrace); ok {
		return d.Begin(ctx)
	}
	return ctx
}

// untraced is the context of work that belongs to no transaction.
var untraced = trace.ContextWithSpan(context.Background(), quiet)

// quiet is what is in the contexts of requests that are in no trace. Its sampled
// flag is not set, so that the Bigtable client and gRPC make no traces of their
// own for them. Package notify has the same.
var quiet = trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
	TraceID: trace.TraceID{0: 1}, SpanID: trace.SpanID{0: 1},
})))
