package txn

import (
	"context"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A background batch may hold mutations of one row by several transactions, and
// some of them may fail: the others are done.
func TestAppliedByMutation(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracing := newTracing(storeConfig{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))})
	ctx, root := tracing.root(context.Background(), "commit")
	defer root.end(nil)
	s := &store{}
	background := newBackground(s)
	var hinted []string
	defer s.hints.watch(func(cell Cell) bool { hinted = append(hinted, cell.Qualifier); return true })()
	one := rowMutation{row: "row", mut: bigtable.NewMutation(), hints: []Cell{{Qualifier: "one"}}, secondaries: tracing.secondaries(ctx, 1)}
	two := rowMutation{row: "row", mut: bigtable.NewMutation(), hints: []Cell{{Qualifier: "two"}}, secondaries: tracing.secondaries(ctx, 1)}
	background.applied([]rowMutation{one, two}, []rowMutation{two})
	if want := []string{"one"}; !slices.Equal(hinted, want) || len(recorder.Ended()) != 1 {
		t.Errorf("hints %v and %d spans after one of two mutations was applied, want %v and 1", hinted, len(recorder.Ended()), want)
	}
	background.applied([]rowMutation{two}, nil)
	if want := []string{"one", "two"}; !slices.Equal(hinted, want) || len(recorder.Ended()) != 2 {
		t.Errorf("hints %v and %d spans after both, want %v and 2", hinted, len(recorder.Ended()), want)
	}
}
