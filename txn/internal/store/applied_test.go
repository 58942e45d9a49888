package store

import (
	"context"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/telemetry"
)

// TestAppliedByMutation: a background batch may hold mutations of one row by several
// transactions. If some of them fail, the rest still counts as applied.
func TestAppliedByMutation(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracing := telemetry.NewTracing(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)), false)
	ctx, root := tracing.Root(context.Background(), "commit")
	defer root.EndWith(nil)
	s := &Store{}
	background := newBackground(s)
	var hinted []string
	defer s.Hints.Watch(func(cell format.Cell) bool { hinted = append(hinted, cell.Qualifier); return true })()
	one := RowMutation{Row: "row", Mut: bigtable.NewMutation(), Hints: []format.Cell{{Qualifier: "one"}}, Secondaries: tracing.Secondaries(ctx, 1)}
	two := RowMutation{Row: "row", Mut: bigtable.NewMutation(), Hints: []format.Cell{{Qualifier: "two"}}, Secondaries: tracing.Secondaries(ctx, 1)}
	background.NoteApplied([]RowMutation{one, two}, []RowMutation{two})
	if want := []string{"one"}; !slices.Equal(hinted, want) || len(recorder.Ended()) != 1 {
		t.Errorf("hints %v and %d spans after one of two mutations was applied, want %v and 1", hinted, len(recorder.Ended()), want)
	}
	background.NoteApplied([]RowMutation{two}, nil)
	if want := []string{"one", "two"}; !slices.Equal(hinted, want) || len(recorder.Ended()) != 2 {
		t.Errorf("hints %v and %d spans after both, want %v and 2", hinted, len(recorder.Ended()), want)
	}
}
