package txn

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso"

	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// This file lets a transaction look before it is worth a trace.

// later is a trace that has not begun yet.
type later struct {
	t       *Txn
	attempt *attempt
	got     time.Time // the start timestamp

	once   sync.Once
	parent trace.Span
	look   laterRead
}

// laterRead is Observe's read.
type laterRead struct {
	table        string
	began, ended time.Time
	span         store.Span
}

// start begins what was put off. A read that is under way goes on in its span.
func (l *later) start(ctx context.Context) {
	l.once.Do(func() {
		t := l.t
		ctx := t.opts.traceLater(ctx)
		l.parent = trace.SpanFromContext(ctx)
		t.parentSpan = l.parent.SpanContext().SpanID()
		t.span, t.carried = t.client.Trace.Transaction(ctx, t.opts.name, l.attempt.number, &l.attempt.earlier, trace.WithTimestamp(t.begun))
		if !t.span.Recording() {
			return
		}
		t.span.Set(store.AttrStartTS.Int64(int64(t.startTS)))
		ctx = trace.ContextWithSpan(ctx, t.carried)
		past := func(operation, table string, began time.Time) store.Span {
			_, s := t.client.Trace.Root(ctx, store.SpanName(operation, table), append(store.Request(operation, table), trace.WithTimestamp(began))...)
			return s
		}
		if s := past("timestamp", "", t.begun); s.Recording() {
			s.End(trace.WithTimestamp(l.got))
		}
		if l.look.table == "" {
			return
		}
		l.look.span = past("read", l.look.table, l.look.began)
		if l.look.span.Recording() && !l.look.ended.IsZero() {
			l.look.span.End(trace.WithTimestamp(l.look.ended))
		}
	})
}

// lookBegins and lookEnds are around Observe's read. l may be nil.
func (l *later) lookBegins(ctx context.Context, table string) context.Context {
	if l == nil {
		return ctx
	}
	l.look = laterRead{table: table, began: time.Now()}
	return store.WithDeferred(ctx, l)
}

func (l *later) lookEnds(err error) {
	if l == nil {
		return
	}
	l.look.span.EndWith(err)
	l.look.ended = time.Now()
}

// Begin begins the trace of a look that met a lock, and returns ctx with
// the look's span in it.
func (l *later) Begin(ctx context.Context) context.Context {
	l.start(ctx)
	if !l.look.span.Recording() {
		return ctx
	}
	return trace.ContextWithSpan(ctx, l.look.span)
}

// trace begins the transaction's span, or puts it off.
func (t *Txn) trace(ctx context.Context, a *attempt) {
	t.parentSpan = trace.SpanContextFromContext(ctx).SpanID()
	if t.opts.traceLater == nil {
		t.span, t.carried = t.client.Trace.Transaction(ctx, t.opts.name, a.number, &a.earlier)
		return
	}
	t.later = &later{t: t, attempt: a}
	if !t.client.Trace.Off() {
		t.carried = store.Quiet
	}
}

// started notes the start timestamp in the transaction's span.
func (t *Txn) started(ts tso.Timestamp) {
	if t.startTS = ts; t.later != nil {
		t.later.got = time.Now()
	}
	if t.span.Recording() {
		t.span.Set(store.AttrStartTS.Int64(int64(ts)))
	}
}
