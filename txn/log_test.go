package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// At the debug level, the client logs a conflict with both transactions, the cell and the
// trace. At higher levels it does not.
func TestCollisionLog(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo} {
		var out bytes.Buffer
		provider := sdktrace.NewTracerProvider()
		env := txntest.New(t, txntest.WithConfig(txn.Config{TracerProvider: provider, Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))}))
		env.CreateTable("accounts", "bal")
		ctx, root := provider.Tracer("test").Start(t.Context(), "request")
		tx, err := env.Client.Begin(ctx, txn.Named("transfer"))
		if err != nil {
			t.Fatal(err)
		}
		tx.Table("accounts").Set("bob", "bal", "usd", []byte("secret"))
		other, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("accounts").Set("bob", "bal", "usd", []byte("secret"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Commit(ctx); !errors.Is(err, txn.ErrConflict) {
			t.Fatalf("error is %v; want a conflict", err)
		}
		root.End()
		want := fmt.Sprintf("level=DEBUG msg=collision transaction=transfer cell=accounts/bob/bal:usd reason=write start_ts=%d conflict_ts=%d trace_id=%s span_id=", tx.StartTS(), other, root.SpanContext().TraceID())
		if level == slog.LevelDebug != strings.Contains(out.String(), want) || strings.Contains(out.String(), "secret") {
			t.Errorf("at level %v the log is\n%sLevel DEBUG, and no other, must log\n%s", level, out.String(), want)
		}
	}
}

// A logger of WithTraceIDs keeps its attributes and groups, and adds ids only inside a trace.
func TestWithTraceIDs(t *testing.T) {
	var out bytes.Buffer
	provider := sdktrace.NewTracerProvider()
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	defer span.End()
	log := txn.WithTraceIDs(slog.New(slog.NewTextHandler(&out, nil))).With("a", 1).WithGroup("g")
	log.InfoContext(ctx, "in a trace", "b", 2)
	log.Info("in none", "b", 2)
	id := span.SpanContext()
	for _, want := range []string{
		fmt.Sprintf(`msg="in a trace" a=1 g.b=2 g.trace_id=%s g.span_id=%s`, id.TraceID(), id.SpanID()),
		"msg=\"in none\" a=1 g.b=2\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}

// lines are the lines that a logger wrote.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

// A transaction that nobody ends holds garbage collection back. After ten minutes the client
// says so, once; it says nothing of a snapshot that is held on purpose.
func TestForgottenTransactionIsLogged(t *testing.T) {
	long.RacedAtNight(t)
	synctest.Test(t, func(t *testing.T) {
		logged := make(lines, 100)
		env := txntest.New(t, txntest.Embedded())
		c := env.NewClient(txn.Config{Logger: slog.New(slog.NewTextHandler(logged, nil))})
		held, err := c.Snapshot(t.Context(), txn.Hold())
		if err != nil {
			t.Fatal(err)
		}
		defer held.Release()
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		<-time.After(9*time.Minute + 50*time.Second)
		if n := len(logged); n > 0 {
			t.Errorf("logged before ten minutes: %s", <-logged)
		}
		<-time.After(time.Hour)
		want := fmt.Sprintf("start_ts=%d age=10m", tx.StartTS())
		if n := len(logged); n != 1 {
			t.Fatalf("%d lines are logged, want 1", n)
		}
		if line := <-logged; !strings.Contains(line, want) || !strings.Contains(line, "level=WARN") {
			t.Errorf("the log is %q; want a warning with %s", line, want)
		}
	})
}
