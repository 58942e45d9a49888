package notify_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/notify"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// observed writes a cell three times, each time in another trace, has a worker observe it,
// and returns the spans of the writers and of the worker. The two clients share nothing but
// Bigtable.
func observed(t *testing.T, o notify.Observer, log *slog.Logger) (writers []trace.SpanContext, spans []sdktrace.ReadOnlySpan) {
	t.Helper()
	env := txntest.New(t)
	env.CreateTable("docs", "d")
	if err := changes.RegisterObserver(t.Context(), env.Client, "docs", txn.Column{Family: "d", Qualifier: "in"}, "first", false); err != nil {
		t.Fatal(err)
	}
	elsewhere := tracetest.NewSpanRecorder()
	writing := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(elsewhere))
	writer := env.NewClient(txn.Config{TracerProvider: writing})
	for range 3 {
		ctx, root := writing.Tracer("test").Start(t.Context(), "request")
		if _, err := writer.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
			tx.Table("docs").Set("row", "d", "in", []byte("x"))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		root.End()
	}
	for _, s := range elsewhere.Ended() {
		if s.Name() == "transaction" {
			writers = append(writers, s.SpanContext())
		}
	}
	recorder := tracetest.NewSpanRecorder()
	working := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	ended := make(chan struct{}, 16)
	cfg := notify.Config{NoHints: true, OnEvent: func(e notify.Event) {
		if e.Outcome != notify.Acknowledged {
			select {
			case ended <- struct{}{}:
			default:
			}
		}
	}}
	w, err := notify.NewWorker(env.NewClient(txn.Config{TracerProvider: working, Logger: log}), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Handle("first", input.table, input.Column, o, notify.MaxAttempts(1)); err != nil {
		t.Fatal(err)
	}
	// The trace in which the worker runs did not cause its runs.
	ctx, service := working.Tracer("test").Start(t.Context(), "service")
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-ended
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	service.End()
	return writers, recorder.Ended()
}

// An observer's run is a new root of kind CONSUMER, with one link for each
// change that it collapsed; its transaction is its child.
func TestTraceOfARun(t *testing.T) {
	writers, spans := observed(t, copyTo(middle, "a"), nil)
	var run, transaction sdktrace.ReadOnlySpan
	for _, s := range spans {
		outcome := spanValue(s, "percolator.outcome")
		switch {
		case s.Name() == "observe first" && outcome.AsString() == "committed":
			run = s
		case s.Name() == "transaction first" && outcome.AsString() == "committed":
			transaction = s
		}
	}
	if run == nil || transaction == nil {
		t.Fatalf("no run and transaction that committed among %d spans", len(spans))
	}
	if run.Parent().IsValid() || run.SpanKind() != trace.SpanKindConsumer {
		t.Errorf("the run has parent %v and kind %v, want none and consumer", run.Parent().SpanID(), run.SpanKind())
	}
	if transaction.Parent().SpanID() != run.SpanContext().SpanID() {
		t.Error("the transaction is not the run's child")
	}
	if len(run.Links()) != len(writers) {
		t.Fatalf("%d links for %d changes", len(run.Links()), len(writers))
	}
	for i, l := range run.Links() {
		if l.SpanContext.TraceID() != writers[i].TraceID() || l.SpanContext.SpanID() != writers[i].SpanID() {
			t.Errorf("link %d leads to %v, not to the transaction that wrote change %d, %v", i, l.SpanContext, i, writers[i])
		}
	}
	if v := spanValue(run, "percolator.collapsed"); v.AsInt64() != 2 {
		t.Errorf("percolator.collapsed is %v, want 2", v.AsInt64())
	}
}

// Logs of a run lead to its trace, and its span has the final outcome.
func TestTraceOfAFailedRun(t *testing.T) {
	var mu sync.Mutex
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(locked{&mu, &text}, nil))
	_, spans := observed(t, notify.ObserverFunc(func(context.Context, *txn.Txn, txn.Cell) error {
		return errors.New("secret")
	}), log)
	found := false
	for _, s := range spans {
		outcome := spanValue(s, "percolator.outcome")
		if s.Name() != "observe first" || outcome.AsString() != "parked" {
			continue
		}
		found = true
		mu.Lock()
		for _, message := range []string{"observer failed", "a change became a dead letter"} {
			if line := lineWith(text.String(), message); !strings.Contains(line, "trace_id="+s.SpanContext().TraceID().String()) {
				t.Errorf("log line %q lacks the trace id of its run: %s", message, line)
			}
		}
		mu.Unlock()
		if strings.Contains(s.Status().Description, "secret") {
			t.Errorf("the span contains the error's text: %s", s.Status().Description)
		}
	}
	if !found {
		t.Errorf("no span of a run that was parked among %v", spans)
	}
}

func spanValue(s sdktrace.ReadOnlySpan, key attribute.Key) attribute.Value {
	set := attribute.NewSet(s.Attributes()...)
	v, _ := set.Value(key)
	return v
}

type locked struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (l locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func lineWith(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}
