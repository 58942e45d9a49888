package txn_test

import (
	"context"
	"sync/atomic"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// A sampler's decision about a transaction applies to everything below it: under a
// transaction that is not recorded, no library begins traces of its own.
func TestSampledOut(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	first := &firstRoot{}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.ParentBased(first)))
	var rpcs atomic.Int64
	count := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if method == "/google.bigtable.v2.Bigtable/CheckAndMutateRow" {
			rpcs.Add(1)
			_, s := provider.Tracer("library").Start(ctx, method)
			s.End()
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	})
	env := txntest.New(t, txntest.WithConfig(txn.Config{TokenTTL: -1, TracerProvider: provider}), txntest.WithDialOptions(count))
	env.CreateTable("accounts", "bal")
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx.Table("accounts").Set("bob", "bal", "usd", nil)
	rpcs.Store(0)
	first.drop = true
	tx2, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first.drop = false
	recorded := len(recorder.Ended())
	tx2.Table("accounts").Set("joe", "bal", "usd", nil)
	if _, err := tx2.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := rpcs.Load(); n < 2 {
		t.Errorf("%d requests passed the interceptor, want 2 or more", n)
	}
	if got := recorder.Ended()[recorded:]; len(got) > 0 {
		t.Errorf("below a transaction that was sampled out there are the spans %v; want none", names(got))
	}
	tx.Rollback()
}

// A firstRoot is a sampler that drops root spans while drop is set.
type firstRoot struct{ drop bool }

func (f *firstRoot) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if f.drop {
		return sdktrace.NeverSample().ShouldSample(p)
	}
	return sdktrace.AlwaysSample().ShouldSample(p)
}

func (f *firstRoot) Description() string { return "firstRoot" }

func names(spans []sdktrace.ReadOnlySpan) []string {
	var all []string
	for _, s := range spans {
		all = append(all, s.Name())
	}
	return all
}
