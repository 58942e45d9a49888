// Package spantest draws the spans of a trace, for tests of tracing.
package spantest

import (
	"fmt"
	"slices"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Tree draws the spans below parent: their names, and the attributes and events that are
// the same in every run.
func Tree(spans []sdktrace.ReadOnlySpan, parent trace.SpanID, indent string) string {
	var out strings.Builder
	slices.SortStableFunc(spans, func(a, b sdktrace.ReadOnlySpan) int {
		return a.StartTime().Compare(b.StartTime())
	})
	for _, s := range spans {
		if s.Parent().SpanID() != parent {
			continue
		}
		fmt.Fprintf(&out, "%s%s", indent, s.Name())
		for _, a := range s.Attributes() {
			switch a.Key {
			case "percolator.outcome", "percolator.rows", "percolator.attempt", "percolator.lock.action", "percolator.locks", "error.type":
				fmt.Fprintf(&out, " %s=%s", strings.TrimPrefix(string(a.Key), "percolator."), a.Value.String())
			}
		}
		for _, e := range s.Events() {
			fmt.Fprintf(&out, " [%s]", e.Name)
		}
		if len(s.Links()) > 0 {
			fmt.Fprintf(&out, " links=%d", len(s.Links()))
		}
		out.WriteString("\n" + Tree(spans, s.SpanContext().SpanID(), indent+"  "))
	}
	return out.String()
}
