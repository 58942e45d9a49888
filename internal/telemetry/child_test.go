package telemetry_test

import (
	"slices"
	"testing"

	"github.com/percolator-bigtable/percolator/internal/telemetry"
)

// What children are scraped at is not what their parent is, nor each other.
func TestChildren(t *testing.T) {
	t.Setenv("OTEL_METRICS_EXPORTER", "prometheus")
	t.Setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "")
	t.Setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "")
	last := func(env []string, name string) (value string) {
		for _, e := range env {
			if len(e) > len(name) && e[:len(name)+1] == name+"=" {
				value = e[len(name)+1:]
			}
		}
		return value
	}
	const port = "OTEL_EXPORTER_PROMETHEUS_PORT"
	if got := last(telemetry.ChildEnv(2), port); got != "9466" {
		t.Errorf("the second child is scraped at port %q, want 9466", got)
	}
	if got := last(telemetry.ChildEnv(2), "OTEL_BSP_SCHEDULE_DELAY"); got != "100" {
		t.Errorf("a child's spans wait %q ms, want 100", got)
	}
	first, second := last(telemetry.NextChildEnv(), port), last(telemetry.NextChildEnv(), port)
	if first == second || slices.Contains([]string{first, second}, "9464") {
		t.Errorf("two children are scraped at ports %q and %q", first, second)
	}
	if got := telemetry.ChildPorts(3); got != "localhost:9464 to localhost:9467" {
		t.Errorf("ports %q", got)
	}
	t.Setenv(port, "0")
	if got := last(telemetry.ChildEnv(2), port); got != "0" || telemetry.ChildPorts(3) != "" {
		t.Errorf("with port 0 a child has %q, and the ports are %q", got, telemetry.ChildPorts(3))
	}
	t.Setenv(port, "1000")
	t.Setenv("OTEL_METRICS_EXPORTER", "otlp")
	if got := last(telemetry.ChildEnv(2), port); got != "1000" || telemetry.ChildPorts(3) != "" {
		t.Errorf("without Prometheus a child has port %q, and the ports are %q", got, telemetry.ChildPorts(3))
	}
}
