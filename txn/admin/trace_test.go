package admin_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/internal/spantest"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// What an operator calls is traced without a caller's span, too.
func TestTraceOfOperatorsCalls(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	cfg := txn.Config{TokenTTL: -1, LockTTL: 10 * time.Millisecond}
	env := txntest.New(t, txntest.WithConfig(cfg))
	env.CreateTable("accounts", "bal")
	faults := txntest.NewFaults(t)
	commit := faults.OnStep(txntest.StepCommit, txntest.Hold)
	ctx, cancel := context.WithCancel(t.Context())
	ctx, victim := provider.Tracer("test").Start(ctx, "victim")
	dying := env.NewClient(txn.Config{TokenTTL: -1, LockTTL: 10 * time.Millisecond, TracerProvider: provider}, faults.DialOptions()...)
	tx, err := dying.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("accounts").Set("bob", "bal", "usd", nil)
	go func() {
		<-commit.Fired()
		faults.Kill()
		cancel()
	}()
	if _, err := tx.Commit(ctx); !errors.Is(err, txn.ErrUndetermined) {
		t.Fatalf("%v, want an undetermined commit", err)
	}
	recorder.Reset()

	cfg.TracerProvider = provider
	operator := env.NewClient(cfg)
	var primary txn.Cell
	for l, err := range admin.Locks(t.Context(), operator, "accounts", nil) {
		if err != nil {
			t.Fatal(err)
		}
		primary = l.Primary
	}
	recorder.Reset()
	for locks := 1; locks > 0; { // until its ttl expires
		var s txn.Status
		if s, locks, err = admin.ResolveTransaction(t.Context(), operator, primary, tx.StartTS()); err != nil {
			t.Fatal(err)
		}
		if s.State == txn.StateRolledBack {
			break
		}
		recorder.Reset()
	}
	spans := slices.DeleteFunc(recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool {
		return s.Name() == "timestamp" || s.Name() == "reserve timestamps"
	})
	// The list of locks is the parent of what its loop does.
	want := `resolve transaction locks=1 lock.action=rolled back
  list locks accounts locks=1
  resolve lock accounts lock.action=rolled back links=1
  list locks scratch locks=0
`
	if diff := cmp.Diff(want, spantest.Tree(spans, trace.SpanID{}, "")); diff != "" {
		t.Error(diff)
	}
	for _, s := range spans {
		for _, l := range s.Links() {
			if l.SpanContext.TraceID() != victim.SpanContext().TraceID() {
				t.Errorf("%s is linked to trace %v, not to the owner's", s.Name(), l.SpanContext.TraceID())
			}
		}
	}
	victim.End()
}
