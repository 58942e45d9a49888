// Package telemetry holds the traces and metrics of the timestamp oracles
// (docs/observability.md lists them). Nothing is measured for a single
// timestamp: the metrics count requests.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/instrument"
)

// Scope is the name of this library for OpenTelemetry.
const Scope = "github.com/percolator-bigtable/percolator/tso"

// The attributes that are not OpenTelemetry's own.
const (
	attrRole    = attribute.Key("percolator.oracle.role")
	attrOutcome = attribute.Key("percolator.outcome")
	attrBatch   = attribute.Key("percolator.oracle.batch")
	attrLimit   = attribute.Key("percolator.oracle.limit")
	attrEpoch   = attribute.Key("percolator.oracle.epoch")
)

// The roles of oracles.
const (
	RoleDirect = "direct"
	RoleClient = "client"
	RoleServer = "server"
)

// Outcome is the low-cardinality name of an error for telemetry.
type Outcome struct {
	Err  error
	Name string
}

// Telemetry makes the spans and metrics of one oracle. Its zero value makes
// none.
type Telemetry struct {
	tracer   trace.Tracer
	role     string
	outcomes []Outcome

	requests  metric.Int64Counter
	duration  metric.Float64Histogram
	batch     metric.Int64Histogram
	failovers metric.Int64Counter
	limited   metric.Int64Counter
	lag       metric.Float64Histogram
}

// New makes the instruments. One that cannot be made does not prevent the
// oracle from handing out timestamps: New logs it, and the instrument does
// nothing. The outcomes are those of the oracle's own errors; for an error that
// matches several, the first one counts.
func New(role string, tracers trace.TracerProvider, meters metric.MeterProvider, log *slog.Logger, outcomes ...Outcome) Telemetry {
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	in := instrument.New(meters, Scope)
	t := Telemetry{
		tracer: tracers.Tracer(Scope), role: role, outcomes: slices.Concat(outcomes, formatOutcomes),
		requests:  in.Counter("percolator.oracle.requests", "{request}", "Requests for ranges of timestamps: reservations in direct mode, attempts at servers, refusals of servers; by outcome."),
		duration:  in.Seconds("percolator.oracle.request.duration", "Duration of requests for ranges of timestamps.", .0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10),
		batch:     in.Sizes("percolator.oracle.batch.size", "{timestamp}", "Callers that shared one request.", 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384),
		failovers: in.Counter("percolator.oracle.failovers", "{failover}", "Changes of a client from one server to another."),
	}
	if role == RoleDirect {
		t.lag = in.Seconds("percolator.oracle.direct.lag", "How far new timestamps of direct mode are behind the clock, by request.", .001, .005, .01, .02, .05, .1, .2, .5, 1, 5, 10, 60)
	}
	if role == RoleServer {
		t.limited = in.Counter("percolator.oracle.limited", "{request}", "Requests and connections that a server refused because of a limit, by limit.")
	}
	if err := in.Err(); err != nil {
		log.Warn("tso: making metrics failed", "error", err)
	}
	// Prometheus sees no increase when a series begins at 1; from 0 to 1 it does.
	if role == RoleClient && t.failovers != nil {
		t.failovers.Add(context.Background(), 0)
	}
	if t.limited != nil {
		for _, limit := range []string{"connections", "requests", "streams", "locks"} {
			t.limited.Add(context.Background(), 0, metric.WithAttributes(attrLimit.String(limit)))
		}
	}
	return t
}

// Request begins the span of a request that callers share, as a child of
// origin: the span of the first caller that has one. The sampler's decision for
// origin counts for the request too. The span is nil without a sampled origin.
func (t *Telemetry) Request(ctx context.Context, name string, origin trace.SpanContext, batch int64) (context.Context, trace.Span) {
	if t.tracer == nil || !origin.IsValid() {
		return ctx, nil
	}
	ctx = trace.ContextWithSpanContext(ctx, origin)
	if !origin.IsSampled() {
		return ctx, nil
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attrRole.String(t.role), attrBatch.Int64(batch)))
}

// Origin returns the caller's span, and false if the caller has no trace.
func Origin(ctx context.Context) (sc trace.SpanContext, ok bool) {
	sc = trace.SpanContextFromContext(ctx)
	return sc, sc.IsValid()
}

// Answered measures a request for a range, and ends its span.
func (t *Telemetry) Answered(span trace.Span, began time.Time, batch int64, err error) {
	t.End(span, err)
	if t.requests == nil {
		return
	}
	ctx, outcome := context.Background(), ""
	if t.requests.Enabled(ctx) || t.duration.Enabled(ctx) {
		outcome = t.outcome(err)
	}
	if t.requests.Enabled(ctx) {
		t.requests.Add(ctx, 1, metric.WithAttributes(attrRole.String(t.role), attrOutcome.String(outcome)))
	}
	if t.duration.Enabled(ctx) {
		t.duration.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(attrRole.String(t.role), attrOutcome.String(outcome)))
	}
	if err == nil && t.batch.Enabled(ctx) {
		t.batch.Record(ctx, batch, metric.WithAttributes(attrRole.String(t.role)))
	}
}

// End ends a span that may be nil.
func (t *Telemetry) End(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, t.outcome(err))
		span.SetAttributes(semconv.ErrorTypeKey.String(t.outcome(err)))
	}
	span.End()
}

// FailedOver counts a change of servers.
func (t *Telemetry) FailedOver() {
	if ctx := context.Background(); t.failovers != nil && t.failovers.Enabled(ctx) {
		t.failovers.Add(ctx, 1)
	}
}

// Lag measures how far new timestamps are behind the clock.
func (t *Telemetry) Lag(d time.Duration) {
	if ctx := context.Background(); t.lag != nil && t.lag.Enabled(ctx) {
		t.lag.Record(ctx, d.Seconds())
	}
}

// Refused counts a request that a server did not answer with timestamps.
func (t *Telemetry) Refused(err error) {
	if ctx := context.Background(); t.requests != nil && t.requests.Enabled(ctx) {
		t.requests.Add(ctx, 1, metric.WithAttributes(attrRole.String(t.role), attrOutcome.String(t.outcome(err))))
	}
}

// Limited counts a refusal because of a limit.
func (t *Telemetry) Limited(limit string) {
	if ctx := context.Background(); t.limited != nil && t.limited.Enabled(ctx) {
		t.limited.Add(ctx, 1, metric.WithAttributes(attrLimit.String(limit)))
	}
}

// TakeOver begins the span of an attempt to lead.
func (t *Telemetry) TakeOver(ctx context.Context, epoch uint64) (context.Context, trace.Span) {
	if t.tracer == nil {
		return ctx, trace.SpanFromContext(context.Background())
	}
	ctx, s := t.tracer.Start(ctx, "take over", trace.WithSpanKind(trace.SpanKindClient))
	if s.IsRecording() {
		s.SetAttributes(attrRole.String(t.role), attrEpoch.Int64(int64(epoch)))
	}
	return ctx, s
}

// TookOver ends the span of an attempt to lead.
func (t *Telemetry) TookOver(s trace.Span, done bool, err error) {
	switch {
	case !s.IsRecording():
	case done:
		s.SetAttributes(attrOutcome.String("ok"))
	case err != nil:
		s.SetAttributes(attrOutcome.String(t.outcome(err)), semconv.ErrorTypeKey.String(t.outcome(err)))
		s.SetStatus(codes.Error, t.outcome(err))
	default:
		s.SetAttributes(attrOutcome.String("another was first"))
	}
	s.End()
}

// formatOutcomes are the outcomes that all oracles have.
var formatOutcomes = []Outcome{
	{format.ErrMode, "mode"},
	{format.ErrCorrupt, "corrupt"},
	{format.ErrFormat, "format"},
	{format.ErrNotInitialized, "not initialized"},
	{format.ErrExhausted, "exhausted"},
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "deadline exceeded"},
}

// outcome is the low-cardinality name of how a request ended.
func (t *Telemetry) outcome(err error) string {
	if err == nil {
		return "ok"
	}
	for _, known := range t.outcomes {
		if errors.Is(err, known.Err) {
			return known.Name
		}
	}
	if code := status.Code(err); code != grpccodes.Unknown {
		return code.String()
	}
	return "failed"
}
