package txn

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// Most runs of an observer's worker find nothing to do and are not worth a trace. So the
// worker begins its transaction without one (changes.TraceLater), and begins the trace only
// if the run does work or finds a lock. The spans then start when the work really began.

// A deferredTrace is a trace that may begin later than its transaction.
type deferredTrace struct {
	t             *Txn
	attempt       *attempt
	startReceived time.Time // when the start timestamp arrived

	once   sync.Once
	parent trace.Span
	read   deferredRead
}

// A deferredRead is the read of changes.Observe.
type deferredRead struct {
	table        string
	began, ended time.Time
	span         telemetry.Span
}

// beginNow begins the trace, once. Spans of what has ended already get their true times. A
// read that is under way continues in its span.
func (d *deferredTrace) beginNow(ctx context.Context) {
	d.once.Do(func() {
		t := d.t
		ctx := t.opts.traceLater(ctx)
		d.parent = trace.SpanFromContext(ctx)
		t.parentSpan = d.parent.SpanContext().SpanID()
		t.span, t.contextSpan = t.client.resolver.Trace.Transaction(ctx, t.opts.name, d.attempt.number, &d.attempt.previousSpan, trace.WithTimestamp(t.began))
		if !t.span.Recording() {
			return
		}
		t.span.Set(telemetry.AttrStartTS.Int64(int64(t.startTS)))
		ctx = trace.ContextWithSpan(ctx, t.contextSpan)
		past := func(operation, table string, began time.Time) telemetry.Span {
			_, s := t.client.resolver.Trace.Root(ctx, telemetry.SpanName(operation, table), append(telemetry.RequestOptions(operation, table), trace.WithTimestamp(began))...)
			return s
		}
		if s := past("timestamp", "", t.began); s.Recording() {
			s.End(trace.WithTimestamp(d.startReceived))
		}
		if d.read.table == "" {
			return
		}
		d.read.span = past("read", d.read.table, d.read.began)
		if d.read.span.Recording() && !d.read.ended.IsZero() {
			d.read.span.End(trace.WithTimestamp(d.read.ended))
		}
	})
}

// readBegins notes that the read of changes.Observe begins; readEnds notes its end. d may be
// nil.
func (d *deferredTrace) readBegins(ctx context.Context, table string) context.Context {
	if d == nil {
		return ctx
	}
	d.read = deferredRead{table: table, began: time.Now()}
	return telemetry.WithDeferred(ctx, d)
}

func (d *deferredTrace) readEnds(err error) {
	if d == nil {
		return
	}
	d.read.span.EndWith(err)
	d.read.ended = time.Now()
}

// Begin begins the trace when the read has found a lock, and returns ctx with the read's
// span in it.
func (d *deferredTrace) Begin(ctx context.Context) context.Context {
	d.beginNow(ctx)
	if !d.read.span.Recording() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, d.read.span)
}
