package telemetry

import (
	"os"
	"strconv"
)

// ChildEnv is the environment of the nth child of a process, from 1: its own,
// but for what two processes cannot share, the port that Prometheus scrapes,
// which is n above the parent's; and with spans sent soon, because some
// children are killed.
func ChildEnv(n int) []string {
	env := os.Environ()
	if os.Getenv("OTEL_METRICS_EXPORTER") == "prometheus" {
		port, err := strconv.Atoi(os.Getenv("OTEL_EXPORTER_PROMETHEUS_PORT"))
		if err != nil {
			port = 9464 // OpenTelemetry's default
		}
		if port != 0 {
			port += n
		}
		env = append(env, "OTEL_EXPORTER_PROMETHEUS_PORT="+strconv.Itoa(port))
	}
	if os.Getenv("OTEL_BSP_SCHEDULE_DELAY") == "" {
		env = append(env, "OTEL_BSP_SCHEDULE_DELAY=100")
	}
	return env
}
