package txn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/spantest"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// traced returns an environment whose spans are recorded, the recorder, and a tracer for the
// test's own spans.
func traced(t *testing.T, cfg txn.Config) (*txntest.Env, *tracetest.SpanRecorder, trace.Tracer) {
	recorder, provider := recording()
	cfg.TracerProvider = provider
	return newTraced(t, cfg), recorder, provider.Tracer("test")
}

func recording() (*tracetest.SpanRecorder, trace.TracerProvider) {
	recorder := tracetest.NewSpanRecorder()
	return recorder, sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
}

func newTraced(t *testing.T, cfg txn.Config) *txntest.Env {
	env := txntest.New(t, txntest.WithConfig(cfg))
	env.CreateTable("accounts", "bal")
	return env
}

func TestTraceOfACommit(t *testing.T) {
	env, recorder, tracer := traced(t, txn.Config{SyncSecondaries: true})
	ctx, root := tracer.Start(t.Context(), "request")
	_, err := env.Client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		accounts := tx.Table("accounts")
		if _, _, err := accounts.Get(ctx, "bob", "bal", "usd"); err != nil {
			return err
		}
		accounts.Set("bob", "bal", "usd", []byte("secret value"))
		accounts.Set("joe", "bal", "usd", []byte("secret value"))
		return nil
	}, txn.Named("transfer"))
	root.End()
	if err != nil {
		t.Fatal(err)
	}
	want := `transaction transfer attempt=1 outcome=committed rows=2
  timestamp
    reserve timestamps
  read accounts
  commit
    prewrite accounts
    prewrite accounts
    timestamp
      reserve timestamps
    commit primary accounts [commit point]
    commit secondaries rows=1
`
	if diff := cmp.Diff(want, spantest.Tree(recorder.Ended(), root.SpanContext().SpanID(), "")); diff != "" {
		t.Error(diff)
	}
	for _, s := range recorder.Ended() {
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, "secret") || strings.Contains(text, "bob") {
			t.Errorf("span %s shows a value or a row key: %s", s.Name(), text)
		}
	}
}

// A transaction of Begin has no context of its own. Its spans are below the context of
// Begin, or below a span that the caller began there.
func TestTraceOfATransactionByHand(t *testing.T) {
	env, recorder, tracer := traced(t, txn.Config{})
	ctx, root := tracer.Start(t.Context(), "request")
	tx, err := env.Client.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := tx.Table("accounts").Get(ctx, "bob", "bal", "usd"); err != nil {
		t.Fatal(err)
	}
	inner, part := tracer.Start(ctx, "part")
	if _, _, err := tx.Table("accounts").Get(inner, "joe", "bal", "usd"); err != nil {
		t.Fatal(err)
	}
	part.End()
	tx.Rollback()
	root.End()
	want := `transaction attempt=1 outcome=rolled back rows=0
  timestamp
    reserve timestamps
  read accounts
part
  read accounts
`
	if diff := cmp.Diff(want, spantest.Tree(recorder.Ended(), root.SpanContext().SpanID(), "")); diff != "" {
		t.Error(diff)
	}
}

func TestTraceOfManyRows(t *testing.T) {
	env, recorder, tracer := traced(t, txn.Config{SyncSecondaries: true})
	ctx, root := tracer.Start(t.Context(), "request")
	if _, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		for i := range 17 {
			tx.Table("accounts").Set(fmt.Sprint(i), "bal", "usd", nil)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	root.End()
	want := `transaction attempt=1 outcome=committed rows=17
  timestamp
    reserve timestamps
  commit
    prewrite rows=17
    timestamp
      reserve timestamps
    commit primary accounts [commit point]
    commit secondaries rows=16
`
	if diff := cmp.Diff(want, spantest.Tree(recorder.Ended(), root.SpanContext().SpanID(), "")); diff != "" {
		t.Error(diff)
	}
}

func TestTraceOfAConflict(t *testing.T) {
	for _, wait := range []time.Duration{-1, 0} {
		traceOfAConflict(t, txn.Config{LatchWait: wait}, wait == 0)
	}
}

func traceOfAConflict(t *testing.T, cfg txn.Config, known bool) {
	env, recorder, tracer := traced(t, cfg)
	ctx, root := tracer.Start(t.Context(), "request")
	tx, err := env.Client.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("accounts").Set("bob", "bal", "usd", nil)
	commitTS, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Commit(ctx); !errors.Is(err, txn.ErrConflict) {
		t.Fatalf("%v, want a conflict", err)
	}
	root.End()
	want := `transaction attempt=1 outcome=conflict rows=1 error.type=conflict
  timestamp
    reserve timestamps
  commit error.type=conflict [conflict]
    prewrite accounts error.type=conflict
    roll back
`
	if known { // the client knows the conflict before its prewrite
		want = strings.Join(strings.SplitAfter(want, "\n")[:4], "")
	}
	spans := recorder.Ended()
	if diff := cmp.Diff(want, spantest.Tree(spans, root.SpanContext().SpanID(), "")); diff != "" {
		t.Error(diff)
	}
	for _, s := range spans {
		for _, e := range s.Events() {
			if e.Name != "conflict" {
				continue
			}
			got := attribute.NewSet(e.Attributes...)
			if got.HasValue("percolator.row") {
				t.Error("the event names the row without Config.TraceRowKeys")
			}
			for key, want := range map[attribute.Key]string{
				"db.collection.name": "accounts", "percolator.family": "bal", "percolator.qualifier": "usd",
				"percolator.start_ts": fmt.Sprint(int64(tx.StartTS())), "percolator.conflict.ts": fmt.Sprint(int64(commitTS)),
				"percolator.conflict.reason": "write",
			} {
				if v, _ := got.Value(key); v.String() != want {
					t.Errorf("%s is %q, want %q", key, v.String(), want)
				}
			}
		}
	}
}

// A retry is an event of the caller's span, and its span links to the previous attempt.
func TestTraceOfARetry(t *testing.T) {
	env, recorder, tracer := traced(t, txn.Config{})
	ctx, root := tracer.Start(t.Context(), "request")
	attempts := 0
	if _, err := env.Client.Update(ctx, func(_ context.Context, tx *txn.Txn) error {
		if attempts++; attempts == 1 {
			return &txn.ConflictError{Cell: txn.Cell{Table: "accounts", Row: "bob", Family: "bal", Qualifier: "usd"}, Reason: format.ConflictWrite}
		}
		return nil
	}, txn.Named("transfer")); err != nil {
		t.Fatal(err)
	}
	root.End()
	var spans []sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		if s.Name() == "transaction transfer" {
			spans = append(spans, s)
		}
		if s.Name() == "request" && (len(s.Events()) != 1 || s.Events()[0].Name != "retry") {
			t.Errorf("the caller's span has the events %v; want one retry", s.Events())
		}
	}
	if len(spans) != 2 || len(spans[1].Links()) != 1 || !spans[1].Links()[0].SpanContext.Equal(spans[0].SpanContext()) {
		t.Fatalf("the second attempt is not linked to the first: %v", spans)
	}
}

// If a reader resolves a crashed client's lock, its span links to that client's trace.
func TestTraceOfAResolution(t *testing.T) {
	recorder, provider := recording()
	cfg := txn.Config{TokenTTL: -1, LockTTL: 10 * time.Millisecond, TracerProvider: provider}
	env, tracer := newTraced(t, cfg), provider.Tracer("test")
	faults := txntest.NewFaults(t)
	commit := faults.OnStep(txntest.StepCommit, txntest.Hold)
	dying := env.NewClient(cfg, faults.DialOptions()...)
	ctx, victim := tracer.Start(t.Context(), "victim")
	ctx, cancel := context.WithCancel(ctx)
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
	victim.End()

	ctx, root := tracer.Start(t.Context(), "reader")
	snapshot, err := env.Client.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := snapshot.Table("accounts").Get(ctx, "bob", "bal", "usd"); err != nil {
		t.Fatal(err)
	}
	root.End()
	want := `read accounts
  resolve lock accounts lock.action=rolled back links=1
`
	// How often the reader asks the oracle depends on how long the lock lives.
	spans := slices.DeleteFunc(recorder.Ended(), func(s sdktrace.ReadOnlySpan) bool { return s.Name() == "timestamp" || s.Name() == "reserve timestamps" })
	if diff := cmp.Diff(want, spantest.Tree(spans, root.SpanContext().SpanID(), "")); diff != "" {
		t.Error(diff)
	}
	for _, s := range recorder.Ended() {
		for _, l := range s.Links() {
			if l.SpanContext.TraceID() != victim.SpanContext().TraceID() {
				t.Errorf("the resolution is linked to trace %v, not to the owner's, %v", l.SpanContext.TraceID(), victim.SpanContext().TraceID())
			}
		}
	}
}

// The secondaries have a span of their own, which the commit does not wait for. Background
// work is in no trace, not even in traces of the Bigtable client's own tracer.
func TestSecondariesHoldNothingOpen(t *testing.T) {
	recorder, provider := recording()
	env := newTraced(t, txn.Config{TracerProvider: provider})
	faults := txntest.NewFaults(t)
	held := faults.OnStep(txntest.StepSecondaries, txntest.Hold)
	library := func(ctx context.Context, method string) {
		_, s := provider.Tracer("library").Start(ctx, method)
		s.End()
	}
	c := env.NewClient(txn.Config{TracerProvider: provider}, append(faults.DialOptions(),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			library(ctx, method)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			library(ctx, method)
			return open(ctx, desc, cc, method, opts...)
		}))...)
	recorder.Reset() // drop the spans of NewClient
	if _, err := c.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("accounts").Set("bob", "bal", "usd", nil)
		tx.Table("accounts").Set("joe", "bal", "usd", nil)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	<-held.Fired()
	ended := map[string]sdktrace.ReadOnlySpan{}
	for _, s := range recorder.Ended() {
		ended[s.Name()] = s
	}
	if ended["transaction"] == nil || ended["commit"] == nil || ended["commit secondaries"] != nil {
		t.Errorf("while the secondaries are under way, these spans have ended: %v; want the transaction and the commit", ended)
	}
	held.Release()
	ctx, closing := provider.Tracer("test").Start(t.Context(), "close") // Close removes the worker token
	if err := c.Close(ctx); err != nil {
		t.Fatal(err)
	}
	closing.End()
	var roots []string
	var last sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		if !s.Parent().IsValid() {
			roots = append(roots, s.Name())
		}
		if s.Name() == "commit secondaries" {
			last = s
		}
	}
	if !slices.Equal(roots, []string{"transaction", "close"}) {
		t.Errorf("the root spans are %q; want one of the transaction and one of Close", roots)
	}
	if last == nil {
		t.Fatal("the secondaries have no span")
	}
	if last.Parent().SpanID() != ended["commit"].SpanContext().SpanID() || last.StartTime().Before(ended["commit primary accounts"].EndTime()) {
		t.Errorf("the secondaries are below %v, and began at %v; want below the commit, after the commit point", last.Parent().SpanID(), last.StartTime())
	}
}
