package txn

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// This file lets a transaction look before it is worth a trace.

// deferredTrace is a trace that has not begun yet.
type deferredTrace struct {
	t             *Txn
	attempt       *attempt
	startReceived time.Time // the start timestamp

	once   sync.Once
	parent trace.Span
	read   deferredRead
}

// deferredRead is Observe's read.
type deferredRead struct {
	table        string
	began, ended time.Time
	span         telemetry.Span
}

// beginNow begins what was put off. A read that is under way continues in its span.
func (l *deferredTrace) beginNow(ctx context.Context) {
	l.once.Do(func() {
		t := l.t
		ctx := t.opts.traceLater(ctx)
		l.parent = trace.SpanFromContext(ctx)
		t.parentSpan = l.parent.SpanContext().SpanID()
		t.span, t.contextSpan = t.client.resolver.Trace.Transaction(ctx, t.opts.name, l.attempt.number, &l.attempt.previousSpan, trace.WithTimestamp(t.began))
		if !t.span.Recording() {
			return
		}
		t.span.Set(telemetry.AttrStartTS.Int64(int64(t.startTS)))
		ctx = trace.ContextWithSpan(ctx, t.contextSpan)
		past := func(operation, table string, began time.Time) telemetry.Span {
			_, s := t.client.resolver.Trace.Root(ctx, telemetry.SpanName(operation, table), append(telemetry.Request(operation, table), trace.WithTimestamp(began))...)
			return s
		}
		if s := past("timestamp", "", t.began); s.Recording() {
			s.End(trace.WithTimestamp(l.startReceived))
		}
		if l.read.table == "" {
			return
		}
		l.read.span = past("read", l.read.table, l.read.began)
		if l.read.span.Recording() && !l.read.ended.IsZero() {
			l.read.span.End(trace.WithTimestamp(l.read.ended))
		}
	})
}

// readBegins and lookEnds are around Observe's read. l may be nil.
func (l *deferredTrace) readBegins(ctx context.Context, table string) context.Context {
	if l == nil {
		return ctx
	}
	l.read = deferredRead{table: table, began: time.Now()}
	return telemetry.WithDeferred(ctx, l)
}

func (l *deferredTrace) readEnds(err error) {
	if l == nil {
		return
	}
	l.read.span.EndWith(err)
	l.read.ended = time.Now()
}

// Begin begins the trace when the read has found a lock, and returns ctx with the read's
// span in it.
func (l *deferredTrace) Begin(ctx context.Context) context.Context {
	l.beginNow(ctx)
	if !l.read.span.Recording() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, l.read.span)
}
