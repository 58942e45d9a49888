package telemetry

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
	"github.com/percolator-bigtable/percolator/txn/format"
)

// This file makes the spans of transactions (docs/observability.md lists them).
// Where nothing records, nothing is made: a transaction asks the tracer once,
// and everything below it asks its parent.

// scope names this library to OpenTelemetry.
const Scope = "github.com/percolator-bigtable/percolator/txn"

// The attributes of spans, events and metrics that are not OpenTelemetry's own.
const (
	AttrName       = attribute.Key("percolator.transaction.name")
	AttrStartTS    = attribute.Key("percolator.start_ts")
	AttrCommitTS   = attribute.Key("percolator.commit_ts")
	attrReadTS     = attribute.Key("percolator.read_ts")
	attrAttempt    = attribute.Key("percolator.attempt")
	AttrOutcome    = attribute.Key("percolator.outcome")
	AttrRows       = attribute.Key("percolator.rows")
	AttrCells      = attribute.Key("percolator.cells")
	AttrFamily     = attribute.Key("percolator.family")
	AttrQualifier  = attribute.Key("percolator.qualifier")
	attrRow        = attribute.Key("percolator.row")
	AttrReason     = attribute.Key("percolator.conflict.reason")
	attrConflictTS = attribute.Key("percolator.conflict.ts")
	AttrAction     = attribute.Key("percolator.lock.action")
	attrLockTS     = attribute.Key("percolator.lock.start_ts")
	attrLockOwner  = attribute.Key("percolator.lock.owner")
	AttrLocks      = attribute.Key("percolator.locks")
)

// Tracing makes spans.
type Tracing struct {
	tracer trace.Tracer
	// rowKeys lets spans name rows.
	rowKeys bool
	// placeholder is OpenTelemetry's global provider as long as there is no SDK;
	// nil where the provider was given or there is one.
	placeholder trace.TracerProvider
}

func NewTracing(provider trace.TracerProvider, rowKeys bool) Tracing {
	given := provider != nil
	if !given {
		provider = otel.GetTracerProvider()
	}
	t := Tracing{tracer: provider.Tracer(Scope), rowKeys: rowKeys}
	if p := reflect.TypeOf(provider); !given && p.Kind() == reflect.Pointer && p.Elem().PkgPath() == "go.opentelemetry.io/otel/internal/global" {
		t.placeholder = provider
	}
	return t
}

// Off reports that there is no SDK: what its tracer makes then is nothing, but
// costs five allocations.
func (t Tracing) Off() bool { return t.placeholder != nil && t.placeholder == otel.GetTracerProvider() }

// A span is a part of the work on a trace. The zero span is none: nothing
// records.
type Span struct{ trace.Span }

func (s Span) Recording() bool { return s.Span != nil }

// EndWith ends the span, with the error that it ended in.
func (s Span) EndWith(err error) {
	if !s.Recording() {
		return
	}
	if err != nil {
		// Not the error's text: it may name rows.
		s.SetStatus(codes.Error, errorType(err))
		s.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	}
	s.End()
}

func (s Span) Set(attrs ...attribute.KeyValue) {
	if s.Recording() {
		s.SetAttributes(attrs...)
	}
}

// Root begins a span whether or not its parent records. Where a sampler has
// decided against it, the context that is returned says so: what the Bigtable
// client and gRPC begin below it must not become traces of their own.
func (t Tracing) Root(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, Span) {
	if t.Off() {
		return ctx, Span{}
	}
	sctx, s := t.tracer.Start(ctx, name, opts...)
	switch {
	case s.IsRecording():
		return sctx, Span{s}
	case s.SpanContext().Equal(trace.SpanContextFromContext(ctx)):
		return ctx, Span{} // there is no SDK
	}
	return sctx, Span{}
}

// Begin begins a request, or a group of them, as part of what records already.
// Its name is the operation and the table, which may be empty.
func (t Tracing) Begin(ctx context.Context, operation, table string) (context.Context, Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, Span{}
	}
	return t.Root(ctx, SpanName(operation, table), RequestOptions(operation, table)...)
}

// Read begins a read outside of a transaction, which may be a trace of its own.
func (t Tracing) Read(ctx context.Context, table string, ts tso.Timestamp) (context.Context, Span) {
	if t.Off() {
		return ctx, Span{}
	}
	ctx, s := t.Root(ctx, SpanName("read", table), clientKind)
	if s.Recording() {
		s.Set(append(requestAttrs("read", table), attrReadTS.Int64(int64(ts)))...)
	}
	return ctx, s
}

func SpanName(operation, table string) string {
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

func RequestOptions(operation, table string) []trace.SpanStartOption {
	return []trace.SpanStartOption{clientKind, trace.WithAttributes(requestAttrs(operation, table)...)}
}

// Transaction begins the span of one attempt of a transaction, linked to that of the
// attempt before, which it replaces in earlier. carried is what
// has to be in the contexts of its requests: the span, also one that does not
// record; nil where there is no SDK.
func (t Tracing) Transaction(ctx context.Context, name string, number int, earlier *trace.SpanContext, opts ...trace.SpanStartOption) (s Span, carried trace.Span) {
	if t.Off() {
		return Span{}, nil
	}
	title := "transaction"
	if name != "" {
		title += " " + name
	}
	if earlier.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: *earlier}))
	}
	sctx, s := t.Root(ctx, title, opts...)
	if sctx == ctx {
		return Span{}, nil
	}
	if s.Recording() {
		s.SetAttributes(AttrName.String(name), attrAttempt.Int(number))
		*earlier = s.SpanContext()
	}
	return s, trace.SpanFromContext(sctx)
}

// Conflict adds the event of a conflict to whatever span ctx is in.
func (t Tracing) Conflict(ctx context.Context, err error) {
	var c *format.ConflictError
	s := trace.SpanFromContext(ctx)
	if !s.IsRecording() || !errors.As(err, &c) {
		return
	}
	attrs := append(t.cell(c.Cell), AttrReason.String(string(c.Reason)), AttrStartTS.Int64(int64(c.StartTS)))
	if c.ConflictTS != 0 {
		attrs = append(attrs, attrConflictTS.Int64(int64(c.ConflictTS)))
	}
	s.AddEvent("conflict", trace.WithAttributes(attrs...))
}

// Retry adds the event of a function's next run to the caller's span.
func (t Tracing) Retry(ctx context.Context, name string, next int, err error) {
	s := trace.SpanFromContext(ctx)
	if s.IsRecording() {
		s.AddEvent("retry", trace.WithAttributes(AttrName.String(name), attrAttempt.Int(next), semconv.ErrorTypeKey.String(errorType(err))))
	}
}

// cell names a cell's class; its row only when that was asked for.
func (t Tracing) cell(c format.Cell) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.DBCollectionName(c.Table), AttrFamily.String(c.Family), AttrQualifier.String(strings.ToValidUTF8(c.Qualifier, "\uFFFD"))}
	if t.rowKeys {
		attrs = append(attrs, attrRow.String(format.Escape(c.Row, false)))
	}
	return attrs
}

// Resolve begins the work on another transaction's lock, linked to the trace
// of the client that left it.
func (t Tracing) Resolve(ctx context.Context, l *format.Lock) (context.Context, Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		if ctx = beginDeferred(ctx); !trace.SpanFromContext(ctx).IsRecording() {
			return ctx, Span{}
		}
	}
	return t.ResolveRequested(ctx, l)
}

// ResolveRequested is resolve for an operator's call, which may be a trace of its own.
func (t Tracing) ResolveRequested(ctx context.Context, l *format.Lock) (context.Context, Span) {
	opts := []trace.SpanStartOption{clientKind}
	if sc := format.ParseTraceParent(l.TraceParent); sc.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc}))
	}
	ctx, s := t.Root(ctx, SpanName("resolve lock", l.Cell.Table), opts...)
	if s.Recording() {
		s.SetAttributes(semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBOperationName("resolve lock"))
		s.SetAttributes(t.cell(l.Cell)...)
		s.SetAttributes(attrLockTS.Int64(int64(l.StartTS)), attrLockOwner.String(l.Owner))
	}
	return ctx, s
}

// Secondaries begins the span; it is the transaction's child and holds nothing
// open.
func (t Tracing) Secondaries(ctx context.Context, rows int) *Secondaries {
	if rows == 0 || !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, s := t.Begin(ctx, "commit secondaries", "")
	if !s.Recording() {
		return nil
	}
	s.Set(AttrRows.Int(rows))
	return &Secondaries{span: s, remaining: rows}
}

// Call begins an operator's call about one transaction or one table, which may
// be a trace of its own.
func (t Tracing) Call(ctx context.Context, operation, table string) (context.Context, Span) {
	ctx, s := t.Root(ctx, SpanName(operation, table), clientKind)
	if s.Recording() {
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

// WithDeferred returns ctx such that a lock that is met in it begins d.
func WithDeferred(ctx context.Context, d deferredTrace) context.Context {
	return context.WithValue(ctx, deferredKey{}, d)
}

func beginDeferred(ctx context.Context) context.Context {
	if d, ok := ctx.Value(deferredKey{}).(deferredTrace); ok {
		return d.Begin(ctx)
	}
	return ctx
}

// untraced is the context of work that belongs to no transaction.
var Untraced = trace.ContextWithSpan(context.Background(), Quiet)

// quiet is what is in the contexts of requests that are in no trace. Its sampled
// flag is not set, so that the Bigtable client and gRPC make no traces of their
// own for them. Package notify has the same.
var Quiet = trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
	TraceID: trace.TraceID{0: 1}, SpanID: trace.SpanID{0: 1},
})))
