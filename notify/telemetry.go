package notify

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// scope names this library to OpenTelemetry.
const scope = "github.com/percolator-bigtable/percolator/notify"

// The attributes of spans and metrics that are not OpenTelemetry's own.
const (
	attrObserver  = attribute.Key("percolator.observer")
	attrOutcome   = attribute.Key("percolator.outcome")
	attrColumn    = attribute.Key("percolator.column")
	attrChangeTS  = attribute.Key("percolator.change_ts")
	attrCollapsed = attribute.Key("percolator.collapsed")
	attrHops      = attribute.Key("percolator.hops")
	attrSource    = attribute.Key("percolator.source")
)

// quiet is in the contexts of what a worker does by itself: to look for work, to
// remove notifications, to lock cells. Its sampled flag is not set, so that the
// Bigtable client and gRPC make no traces of their own for each request. Package
// txn has the same.
var quiet = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0: 1}, SpanID: trace.SpanID{0: 1}})

// telemetry is what a worker tells OpenTelemetry (docs/observability.md).
type telemetry struct {
	tracer trace.Tracer
	meter  metric.Meter

	executions metric.Int64Counter
	duration   metric.Float64Histogram
	lag        metric.Float64Histogram
	collapsed  metric.Int64Counter
	letters    metric.Int64Counter
	found      metric.Int64Counter
	scanned    metric.Int64Counter
	backlog    metric.Int64ObservableGauge
	scanner    [3]metric.Int64ObservableCounter // sweeps, pieces, teleports
}

func newTelemetry(cfg Config) (t telemetry, err error) {
	tracers := cfg.TracerProvider
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	in := instrument.New(cfg.MeterProvider, scope)
	t = telemetry{
		tracer: tracers.Tracer(scope), meter: in.Meter,
		executions: in.Counter("percolator.observer.executions", "{run}", "Checks of a cell for an observer, by how they ended."),
		duration:   in.Seconds("percolator.observer.duration", "Duration of runs of observers, commit included.", .001, .005, .01, .05, .1, .5, 1, 5, 10, 60),
		lag:        in.Seconds("percolator.observer.lag", "From the oldest change that a run handled to the run's commit, in oracle time.", .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
		collapsed:  in.Counter("percolator.observer.collapsed", "{change}", "Changes that were handled along with a newer one."),
		letters:    in.Counter("percolator.observer.dead_letters", "{change}", "Changes that became dead letters."),
		found:      in.Counter("percolator.notifications.found", "{notification}", "Notifications that a worker took, by how it learned of them."),
		scanned:    in.Counter("percolator.scan.cells", "{cell}", "Cells with notifications that the scan read."),
		backlog:    in.Gauge("percolator.observer.backlog", "{cell}", "Cells that wait in this worker for an observer."),
		scanner: [3]metric.Int64ObservableCounter{
			in.Observed("percolator.scan.sweeps", "{sweep}", "Sweeps of this worker's scanner over all tables."),
			in.Observed("percolator.scan.pieces", "{piece}", "Pieces of tables that the scanner read, each one request or more."),
			in.Observed("percolator.scan.teleports", "{jump}", "Jumps of the scanner away from other workers."),
		},
	}
	return t, in.Err()
}

// watch measures the lanes until stop is called.
func (w *Worker) watchLanes() (stop func(), err error) {
	t := &w.telemetry
	for _, l := range w.lanes {
		for _, h := range l.handlers {
			// From nothing to the first one is no increase to Prometheus; from 0 it is.
			t.letters.Add(context.Background(), 0, metric.WithAttributes(attrObserver.String(h.id)))
		}
	}
	r, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for col, l := range w.lanes {
			o.ObserveInt64(t.backlog, int64(len(l.queue)), metric.WithAttributes(semconv.DBCollectionName(col.Table), attrColumn.String(col.column().String())))
		}
		if s, ok := w.cfg.Finder.(*Scanner); ok {
			stats := s.Stats()
			for i, n := range []int64{stats.Sweeps, stats.Pieces, stats.Teleports} {
				o.ObserveInt64(t.scanner[i], n)
			}
		}
		return nil
	}, t.backlog, t.scanner[0], t.scanner[1], t.scanner[2])
	if err != nil {
		return func() {}, err
	}
	return func() { _ = r.Unregister() }, nil
}

// begin begins the span of a run, which began with a look at the cell: a trace
// of its own, because what caused it was over when it committed, and may be many.
func (t *telemetry) begin(ctx context.Context, h *handler, began time.Time) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "observe "+h.id, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(began),
		trace.WithAttributes(attrObserver.String(h.id), semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBCollectionName(h.column.Table), attrColumn.String(h.column.column().String())))
}

// link links a run to what triggered it, one link for each change.
func link(span trace.Span, o *changes.Observation) {
	if span == nil || !span.IsRecording() {
		return
	}
	hops := 0
	for _, trigger := range o.Triggers {
		hops = max(hops, trigger.Hops)
		if sc := format.ParseTraceParent(trigger.TraceParent); sc.IsValid() {
			span.AddLink(trace.Link{SpanContext: sc})
		}
	}
	span.SetAttributes(attrChangeTS.Int64(int64(o.ChangeTS)), attrCollapsed.Int(max(0, len(o.Triggers)-1)), attrHops.Int(hops))
}

// end ends the span of a run.
func (r *run) end(span trace.Span) {
	if span == nil {
		return
	}
	span.SetAttributes(attrOutcome.String(string(r.outcome)))
	switch r.outcome {
	case Failed, Unknown, Parked:
		// Not the error's text, which is the application's: it may hold anything.
		span.SetStatus(codes.Error, string(r.outcome))
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(r.err)))
	}
	span.End()
}

func errorType(err error) string {
	var typed interface{ ErrorType() string }
	if errors.As(err, &typed) {
		return typed.ErrorType()
	}
	return "_OTHER" // OpenTelemetry's word for it
}

// measure records how a look at a cell ended.
func (t *telemetry) measure(e Event, triggers []format.Trigger) {
	ctx := context.Background()
	observer := attrObserver.String(e.Observer)
	if t.executions.Enabled(ctx) {
		t.executions.Add(ctx, 1, metric.WithAttributes(observer, attrOutcome.String(string(e.Outcome))))
	}
	if e.Outcome == Acknowledged || e.Outcome == Waiting {
		return
	}
	if e.Outcome == Parked && t.letters.Enabled(ctx) {
		t.letters.Add(ctx, 1, metric.WithAttributes(observer))
	}
	if t.duration.Enabled(ctx) {
		t.duration.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(observer, attrOutcome.String(string(e.Outcome))))
	}
	if e.Outcome != Committed {
		return
	}
	if e.Collapsed > 0 && t.collapsed.Enabled(ctx) {
		t.collapsed.Add(ctx, int64(e.Collapsed), metric.WithAttributes(observer))
	}
	if len(triggers) > 0 && t.lag.Enabled(ctx) {
		lag := time.Duration(e.CommitTS-triggers[0].TS) * time.Microsecond
		t.lag.Record(ctx, lag.Seconds(), metric.WithAttributes(observer))
	}
}

func (t *telemetry) took(source string) {
	if ctx := context.Background(); t.found.Enabled(ctx) {
		t.found.Add(ctx, 1, metric.WithAttributes(attrSource.String(source)))
	}
}

func (t *telemetry) scannedCell() {
	if ctx := context.Background(); t.scanned.Enabled(ctx) {
		t.scanned.Add(ctx, 1)
	}
}
