package tso

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/instrument"
)

// This file is what the oracles tell OpenTelemetry (docs/observability.md lists
// it). Nothing is measured for a single timestamp: what is counted is requests,
// and what a server counts anyway is read when somebody collects.

// scope names this library to OpenTelemetry.
const scope = "github.com/percolator-bigtable/percolator/tso"

// The attributes that are not OpenTelemetry's own.
const (
	attrRole    = attribute.Key("percolator.oracle.role")
	attrOutcome = attribute.Key("percolator.outcome")
	attrBatch   = attribute.Key("percolator.oracle.batch")
	attrEpoch   = attribute.Key("percolator.oracle.epoch")
)

// The roles.
const (
	roleDirect = "direct"
	roleClient = "client"
	roleServer = "server"
)

// telemetry is one oracle's. Its zero value tells nothing.
type telemetry struct {
	tracer trace.Tracer
	role   string

	requests  metric.Int64Counter
	duration  metric.Float64Histogram
	batch     metric.Int64Histogram
	failovers metric.Int64Counter
}

// newTelemetry makes the instruments. One that cannot be made is no reason not
// to hand out timestamps: it is logged, and does nothing.
func newTelemetry(role string, tracers trace.TracerProvider, meters metric.MeterProvider, log *slog.Logger) telemetry {
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	in := instrument.New(meters, scope)
	t := telemetry{
		tracer: tracers.Tracer(scope), role: role,
		requests:  in.Counter("percolator.oracle.requests", "{request}", "Requests for ranges of timestamps: reservations in direct mode, attempts at servers, refusals of servers; by outcome."),
		duration:  in.Seconds("percolator.oracle.request.duration", "Duration of requests for ranges of timestamps.", .0001, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10),
		batch:     in.Sizes("percolator.oracle.batch.size", "{timestamp}", "Callers that shared one request.", 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096, 16384),
		failovers: in.Counter("percolator.oracle.failovers", "{failover}", "Changes of a client from one server to another."),
	}
	if err := in.Err(); err != nil {
		log.Warn("tso: making metrics failed", "error", err)
	}
	if role == roleClient && t.failovers != nil {
		// From nothing to the first one is no increase to Prometheus; from 0 it is.
		t.failovers.Add(context.Background(), 0)
	}
	return t
}

// request begins the span of a request that callers share: a child of the first
// of them that has a trace. What a sampler decided for that holds here.
func (t *telemetry) request(ctx context.Context, name string, origin trace.SpanContext, batch int64) (context.Context, trace.Span) {
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

// origin is the span that a request is for: nothing where there is no trace.
func origin(ctx context.Context) (sc trace.SpanContext, ok bool) {
	sc = trace.SpanContextFromContext(ctx)
	return sc, sc.IsValid()
}

// answered measures a request for a range, and ends its span.
func (t *telemetry) answered(span trace.Span, began time.Time, batch int64, err error) {
	end(span, err)
	if t.requests == nil {
		return
	}
	ctx, outcome := context.Background(), ""
	if t.requests.Enabled(ctx) || t.duration.Enabled(ctx) {
		outcome = outcomeOf(err)
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

// end ends a span that may be nil.
func end(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, outcomeOf(err))
		span.SetAttributes(semconv.ErrorTypeKey.String(outcomeOf(err)))
	}
	span.End()
}

// failedOver counts a change of servers.
func (t *telemetry) failedOver() {
	if ctx := context.Background(); t.failovers != nil && t.failovers.Enabled(ctx) {
		t.failovers.Add(ctx, 1)
	}
}

// refused counts a request that a server did not answer with timestamps.
func (t *telemetry) refused(err error) {
	if ctx := context.Background(); t.requests != nil && t.requests.Enabled(ctx) {
		t.requests.Add(ctx, 1, metric.WithAttributes(attrRole.String(t.role), attrOutcome.String(outcomeOf(err))))
	}
}

// takeOver begins the span of an attempt to lead.
func (t *telemetry) takeOver(ctx context.Context, epoch uint64) (context.Context, trace.Span) {
	if t.tracer == nil {
		return ctx, trace.SpanFromContext(context.Background())
	}
	ctx, s := t.tracer.Start(ctx, "take over", trace.WithSpanKind(trace.SpanKindClient))
	if s.IsRecording() {
		s.SetAttributes(attrRole.String(t.role), attrEpoch.Int64(int64(epoch)))
	}
	return ctx, s
}

// tookOver ends it.
func tookOver(s trace.Span, done bool, err error) {
	switch {
	case !s.IsRecording():
	case done:
		s.SetAttributes(attrOutcome.String("ok"))
	case err != nil:
		s.SetAttributes(attrOutcome.String(outcomeOf(err)), semconv.ErrorTypeKey.String(outcomeOf(err)))
		s.SetStatus(codes.Error, outcomeOf(err))
	default:
		s.SetAttributes(attrOutcome.String("another was first"))
	}
	s.End()
}

// outcomeOf is the low-cardinality name of how a request ended.
func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, known := range []struct {
		err  error
		name string
	}{
		{ErrNotLeader, "not leader"},
		{ErrMode, "mode"},
		{ErrCorrupt, "corrupt"},
		{ErrFormat, "format"},
		{ErrNotInitialized, "not initialized"},
		{ErrExhausted, "exhausted"},
		{ErrBackwards, "backwards"},
		{ErrClosed, "closed"},
		{errSlow, "slow"},
		{ErrUnavailable, "unavailable"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline exceeded"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	if code := status.Code(err); code != grpccodes.Unknown {
		return code.String()
	}
	return "failed"
}

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *ModeError) ErrorType() string { return outcomeOf(e) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *CorruptError) ErrorType() string { return outcomeOf(e) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *FormatError) ErrorType() string { return outcomeOf(e) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *UnavailableError) ErrorType() string { return outcomeOf(e) }

// ErrorType is the low-cardinality name of the error for telemetry.
func (e *BackwardsError) ErrorType() string { return outcomeOf(e) }

// observe reads the server's own counts whenever somebody collects, until stop
// is called.
func (s *Server) observe() (stop func(), err error) {
	in := instrument.New(s.cfg.MeterProvider, scope)
	timestamps := in.Observed("percolator.oracle.timestamps", "{timestamp}", "Timestamps that this server handed out.")
	answers := in.Observed("percolator.oracle.answers", "{request}", "Requests that this server answered with timestamps.")
	terms := in.Observed("percolator.oracle.terms", "{term}", "How often this server became the leader.")
	writes := in.Observed("percolator.oracle.reservations", "{write}", "Writes of this server to the oracle's row: reservations, renewals, takeovers.")
	leading := in.Gauge("percolator.oracle.leading", "{leader}", "1 while this server leads, else 0.")
	epoch := in.Gauge("percolator.oracle.epoch", "{epoch}", "The epoch of this server's present or last term.")
	locks := in.Gauge("percolator.oracle.locks", "{lock}", "Advisory locks that this server holds for clients.")
	lag := in.SecondsGauge("percolator.oracle.lag", "How far oracle time is behind the leader's clock; negative when it runs ahead.")
	left := in.SecondsGauge("percolator.oracle.reserved", "Oracle time that the leader may still hand out before it has to write again.")
	if err := in.Err(); err != nil {
		return func() {}, err
	}
	r, err := in.Meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := s.lead.status()
		o.ObserveInt64(timestamps, int64(now.Timestamps))
		o.ObserveInt64(answers, int64(now.Requests))
		o.ObserveInt64(terms, int64(now.Terms))
		o.ObserveInt64(writes, int64(now.BigtableWrites))
		o.ObserveInt64(epoch, int64(now.Epoch))
		o.ObserveInt64(locks, int64(s.locks.Len()))
		var is int64
		if now.Leading {
			is = 1
			o.ObserveFloat64(lag, float64(now.Clock-now.Next)/1e6)
			o.ObserveFloat64(left, float64(now.Limit-now.Next)/1e6)
		}
		o.ObserveInt64(leading, is)
		return nil
	}, timestamps, answers, terms, writes, leading, epoch, locks, lag, left)
	if err != nil {
		return func() {}, err
	}
	return func() { _ = r.Unregister() }, nil
}
