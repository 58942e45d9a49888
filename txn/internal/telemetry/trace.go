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

// Scope is the name of this library in OpenTelemetry.
const Scope = "github.com/percolator-bigtable/percolator/txn"

// The attributes of spans, events and metrics that OpenTelemetry does not define.
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

// Tracing makes the spans of one client.
type Tracing struct {
	tracer trace.Tracer
	// rowKeys says that spans may name rows.
	rowKeys bool
	// placeholder is OpenTelemetry's global provider, as it is without an SDK. It is nil if
	// Config names a provider, or if there was an SDK at the start.
	placeholder trace.TracerProvider
}

// NewTracing returns the spans' maker. A nil provider stands for the global one. rowKeys
// lets spans name rows.
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

// Off reports whether the program has no SDK. The spans of its tracer would be empty, but
// cost five allocations each.
func (t Tracing) Off() bool { return t.placeholder != nil && t.placeholder == otel.GetTracerProvider() }

// A Span is a part of a trace. The zero Span records nothing.
type Span struct{ trace.Span }

// Recording reports whether the span records anything.
func (s Span) Recording() bool { return s.Span != nil }

// EndWith ends the span. err is the error of the work that it shows; nil is none.
func (s Span) EndWith(err error) {
	if !s.Recording() {
		return
	}
	if err != nil {
		// The error's text may name rows, so the span has only the type.
		s.SetStatus(codes.Error, errorType(err))
		s.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
	}
	s.End()
}

// Set adds attributes.
func (s Span) Set(attrs ...attribute.KeyValue) {
	if s.Recording() {
		s.SetAttributes(attrs...)
	}
}

// Root begins a span whether or not its parent records. If a sampler decided against the
// trace, the returned context says so: the Bigtable client and gRPC must not begin traces
// of their own below it.
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

// Begin begins the span of a request, or of several that belong together, if the parent
// span records. Its name is the operation and the table, which may be empty.
func (t Tracing) Begin(ctx context.Context, operation, table string) (context.Context, Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, Span{}
	}
	return t.Root(ctx, SpanName(operation, table), RequestOptions(operation, table)...)
}

// Read begins the span of a read outside a transaction, which may be a trace of its own.
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

// SpanName returns the name of a span: the operation and the table, which may be empty.
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

// RequestOptions returns the options of a request's span. table may be empty.
func RequestOptions(operation, table string) []trace.SpanStartOption {
	return []trace.SpanStartOption{clientKind, trace.WithAttributes(requestAttrs(operation, table)...)}
}

// Transaction begins the span of one attempt of a transaction. earlier is the span of the
// attempt before; the new span is linked to it and takes its place. The contexts of the
// attempt's requests must hold carried, which is the span, even if it does not record.
// carried is nil without an SDK.
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

// Conflict adds the event of a conflict to the span of ctx.
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

// Retry adds an event to the span of ctx, which is the caller's: Update runs its function
// again. next is the number of that attempt, and err is why the last one failed.
func (t Tracing) Retry(ctx context.Context, name string, next int, err error) {
	s := trace.SpanFromContext(ctx)
	if s.IsRecording() {
		s.AddEvent("retry", trace.WithAttributes(AttrName.String(name), attrAttempt.Int(next), semconv.ErrorTypeKey.String(errorType(err))))
	}
}

// cell returns the attributes that name a cell. They name the row only if Config allows
// it.
func (t Tracing) cell(c format.Cell) []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.DBCollectionName(c.Table), AttrFamily.String(c.Family), AttrQualifier.String(strings.ToValidUTF8(c.Qualifier, "\uFFFD"))}
	if t.rowKeys {
		attrs = append(attrs, attrRow.String(format.EscapeRow(c.Row)))
	}
	return attrs
}

// Resolve begins the span of resolving a lock that a read or prewrite found. It is linked
// to the trace of the lock's owner.
func (t Tracing) Resolve(ctx context.Context, l *format.Lock) (context.Context, Span) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx, Span{}
	}
	return t.ResolveRequested(ctx, l)
}

// ResolveRequested begins the span of resolving a lock at an operator's request, which may
// be a trace of its own. It is linked to the trace of the lock's owner.
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

// Secondaries begins the span of a transaction's secondaries, which have that many rows. It
// is a child of the transaction's span, and the transaction does not wait for it.
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

// Call begins the span of an operator's call about one transaction or one table, which may
// be a trace of its own.
func (t Tracing) Call(ctx context.Context, operation, table string) (context.Context, Span) {
	ctx, s := t.Root(ctx, SpanName(operation, table), clientKind)
	if s.Recording() {
		s.SetAttributes(requestAttrs(operation, table)...)
	}
	return ctx, s
}

// errorType returns the low-cardinality name of an error.
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
	return "_OTHER" // OpenTelemetry's word for any other
}

// Untraced is the context of background work, which belongs to no transaction.
var Untraced = trace.ContextWithSpan(context.Background(), Quiet)

// Quiet is the span in the contexts of requests that belong to no trace. Because it is
// not sampled, the Bigtable client and gRPC begin no traces for these requests. Package
// notify has an equal one.
var Quiet = trace.SpanFromContext(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
	TraceID: trace.TraceID{0: 1}, SpanID: trace.SpanID{0: 1},
})))
