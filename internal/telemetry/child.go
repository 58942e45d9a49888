package telemetry

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

// port is the one that Prometheus scrapes; ok is false where it scrapes none.
func port() (port int, ok bool) {
	if os.Getenv("OTEL_METRICS_EXPORTER") != "prometheus" || os.Getenv("OTEL_SDK_DISABLED") == "true" {
		return 0, false
	}
	port, err := strconv.Atoi(os.Getenv("OTEL_EXPORTER_PROMETHEUS_PORT"))
	if err != nil {
		port = 9464 // OpenTelemetry's default
	}
	return port, true
}

// ChildPorts says where Prometheus scrapes this process and n children; empty
// where it scrapes none, or where that is left to chance.
func ChildPorts(n int) string {
	first, ok := port()
	if !ok || first == 0 {
		return ""
	}
	host := cmp.Or(os.Getenv("OTEL_EXPORTER_PROMETHEUS_HOST"), "localhost")
	return fmt.Sprintf("%s:%d to %s:%d", host, first, host, first+n)
}

// maxChildren is after how many children NextChildEnv begins anew: the first are
// gone by then.
const maxChildren = 512

var children atomic.Int64

// NextChildEnv is ChildEnv for one child after the other, in programs whose
// children have no places of their own.
func NextChildEnv() []string { return ChildEnv(1 + int((children.Add(1)-1)%maxChildren)) }

// ChildEnv is the environment of the nth child of a process, from 1: its own,
// but for what two processes cannot share, the port that Prometheus scrapes,
// which is n above the parent's; and with spans sent soon, because some
// children are killed.
func ChildEnv(n int) []string {
	env := os.Environ()
	if port, ok := port(); ok {
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
