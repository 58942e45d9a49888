package changes

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// Telemetry returns where the client's traces, metrics and log records go.
func Telemetry(client *txn.Client) (trace.TracerProvider, metric.MeterProvider, *slog.Logger) {
	st := access.ResolverOf(client).Store
	return st.Config.TracerProvider, st.Config.MeterProvider, st.Log
}
