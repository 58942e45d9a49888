package changes_test

import (
	"context"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A transaction with TraceLater is in no trace while it only reads. StartTrace begins
// its span with the time of its beginning, and so does a lock that it finds.
func TestTraceLater(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	env := txntest.New(t)
	env.InitTable(admin.TableSpec{Name: "docs", Families: []string{"d"}})
	cell := txn.Cell{Table: "docs", Row: "row", Family: "d", Qualifier: "in"}
	if err := changes.RegisterObserver(t.Context(), env.Client, "docs", cell.Column(), "first", false); err != nil {
		t.Fatal(err)
	}
	c := env.NewClient(txn.Config{TracerProvider: provider, LockTTL: 100 * time.Millisecond, TokenTTL: -1})
	ctx := t.Context()
	begin := func(ctx context.Context) context.Context {
		ctx, _ = provider.Tracer("test").Start(ctx, "begun later", trace.WithNewRoot())
		return ctx
	}
	check := func() *txn.Txn {
		t.Helper()
		tx, err := c.Begin(ctx, txn.Named("check"), changes.TraceLater(begin))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := changes.Observe(ctx, tx, cell); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	named := func(name string) sdktrace.ReadOnlySpan {
		t.Helper()
		for _, s := range recorder.Ended() {
			if s.Name() == name {
				return s
			}
		}
		t.Fatalf("no span %q", name)
		return nil
	}

	check().Rollback()
	if n := len(recorder.Started()); n != 0 {
		t.Fatalf("a transaction that found nothing began %d spans, the first is %q", n, recorder.Started()[0].Name())
	}

	before := time.Now()
	tx := check()
	between := time.Now()
	here := changes.StartTrace(ctx, tx)
	tx.Table("docs").Set("row", "d", "out", []byte("x"))
	if _, err := tx.Commit(here); err != nil {
		t.Fatal(err)
	}
	transaction, parent := named("transaction check"), trace.SpanContextFromContext(here)
	for name, want := range map[string]trace.SpanContext{"transaction check": parent, "timestamp": transaction.SpanContext(), "read docs": transaction.SpanContext(), "commit": transaction.SpanContext()} {
		if s := named(name); s.Parent().SpanID() != want.SpanID() || s.SpanContext().TraceID() != parent.TraceID() {
			t.Errorf("span %q is below %v in trace %v, want %v in %v", name, s.Parent().SpanID(), s.SpanContext().TraceID(), want.SpanID(), parent.TraceID())
		}
	}
	for _, name := range []string{"transaction check", "timestamp", "read docs"} {
		if s := named(name); s.StartTime().Before(before) || s.StartTime().After(between) {
			t.Errorf("span %q began at %v; the transaction observed from %v to %v", name, s.StartTime(), before, between)
		}
	}
	if end := named("read docs").EndTime(); end.After(between) {
		t.Errorf("the read ended at %v, after Observe returned, %v", end, between)
	}
	if values := spanAttributes(transaction); values["percolator.start_ts"] != tx.StartTS().String() {
		t.Errorf("the transaction's attributes are %v, its start_ts is %d", values, tx.StartTS())
	}

	// A lock of a client that died.
	recorder.Reset()
	faults := txntest.NewFaults(t)
	died := faults.OnStep(txntest.StepCommit, txntest.Crash)
	dying := env.NewClient(txn.Config{TracerProvider: provider, LockTTL: 100 * time.Millisecond, TokenTTL: -1}, faults.DialOptions()...)
	victim, err := dying.Begin(ctx, txn.Named("victim"))
	if err != nil {
		t.Fatal(err)
	}
	victim.Table("docs").Set("row", "d", "in", []byte("x"))
	vctx, cancel := context.WithCancel(ctx)
	committed := make(chan error, 1)
	go func() { _, err := victim.Commit(vctx); committed <- err }()
	<-died.Fired()
	faults.Kill()
	cancel()
	<-committed
	check().Rollback()
	s := named("resolve lock docs")
	if len(s.Links()) != 1 || s.Parent().SpanID() != named("read docs").SpanContext().SpanID() {
		t.Errorf("the resolution has %d links and parent %v, want the lock's owner and the read", len(s.Links()), s.Parent().SpanID())
	}
	if read, tx := named("read docs"), named("transaction check"); read.Parent().SpanID() != tx.SpanContext().SpanID() || !tx.Parent().IsValid() {
		t.Error("the read is not below the transaction, and that not below what was begun for it")
	}
}

func spanAttributes(s sdktrace.ReadOnlySpan) map[string]string {
	values := map[string]string{}
	for _, kv := range s.Attributes() {
		values[string(kv.Key)] = kv.Value.String()
	}
	return values
}
