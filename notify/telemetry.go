package notify

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso/instrument"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// scope names this library to OpenTelemetry.
const scope = "github.com/percolator-bigtable/percolator/notify"

// The attributes of spans and metrics that OpenTelemetry does not define.
const (
	attrObserver  = attribute.Key("percolator.observer")
	attrOutcome   = attribute.Key("percolator.outcome")
	attrColumn    = attribute.Key("percolator.column")
	attrChangeTS  = attribute.Key("percolator.change_ts")
	attrCollapsed = attribute.Key("percolator.collapsed")
	attrHops      = attribute.Key("percolator.hops")
	attrSource    = attribute.Key("percolator.source")
)

// telemetry makes a worker's spans and metrics (docs/reference/telemetry.md).
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

func newTelemetry(tracers trace.TracerProvider, meters metric.MeterProvider) (t telemetry, err error) {
	in := instrument.New(meters, scope)
	t = telemetry{
		tracer: instrument.Tracer(tracers, scope), meter: in.Meter,
		executions: in.Counter("percolator.observer.executions", "{run}", "Checks of a cell for an observer, by outcome."),
		duration:   in.Seconds("percolator.observer.duration", "Duration of runs of observers, commit included.", .001, .005, .01, .05, .1, .5, 1, 5, 10, 60),
		lag:        in.Seconds("percolator.observer.lag", "Time from the oldest change that a run handled to the run's commit, in oracle time.", .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
		collapsed:  in.Counter("percolator.observer.collapsed", "{change}", "Changes that a run handled together with a newer one."),
		letters:    in.Counter("percolator.observer.dead_letters", "{change}", "Changes that became dead letters."),
		found:      in.Counter("percolator.notifications.found", "{notification}", "Notifications that a worker took, by source."),
		scanned:    in.Counter("percolator.scan.cells", "{cell}", "Cells with notifications that the scan read."),
		backlog:    in.Gauge("percolator.observer.backlog", "{cell}", "Cells that wait in this worker for an observer."),
		scanner: [3]metric.Int64ObservableCounter{
			in.Observed("percolator.scan.sweeps", "{sweep}", "Sweeps of this worker's scanner over all tables."),
			in.Observed("percolator.scan.pieces", "{piece}", "Pieces of tables that the scanner read, with one or more requests each."),
			in.Observed("percolator.scan.teleports", "{jump}", "Jumps of the scanner away from other workers."),
		},
	}
	return t, in.Err()
}

// watch measures the lanes and the finder until stop is called.
func (t *telemetry) watch(lanes map[target]*lane, finder Finder) (stop func(), err error) {
	for _, l := range lanes {
		for _, h := range l.handlers {
			// Prometheus sees an increase only in a series that starts with 0.
			t.letters.Add(context.Background(), 0, metric.WithAttributes(attrObserver.String(h.id)))
		}
	}
	r, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for to, l := range lanes {
			o.ObserveInt64(t.backlog, int64(len(l.queue)), metric.WithAttributes(semconv.DBCollectionName(to.table), attrColumn.String(to.column.String())))
		}
		if s, ok := finder.(*Scanner); ok {
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

// begin begins the span of a run, at the time of its check. The span begins a trace of
// its own: the traces of the changes that caused the run, possibly many, have ended.
func (t *telemetry) begin(ctx context.Context, h *handler, began time.Time) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "observe "+h.id, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(began),
		trace.WithAttributes(attrObserver.String(h.id), semconv.DBSystemNameKey.String("gcp.bigtable"), semconv.DBCollectionName(h.target.table), attrColumn.String(h.target.column.String())))
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

// measure records how a check of a cell ended for one observer.
func (t *telemetry) measure(e Event, triggers []format.NotifyCell) {
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

// took counts a notification that the worker took from a source, scan or hint.
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
