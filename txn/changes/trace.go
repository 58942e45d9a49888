package changes

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// TraceLater keeps a transaction and its requests out of every trace until
// [StartTrace] is called, or until [Observe] finds a lock. It is for workers that
// check many cells and mostly find nothing to do. begin is called then, once. It
// returns a context with the span that becomes the parent of the transaction's
// span, which may be in a new trace. The spans of the transaction, of its start
// timestamp and of Observe's read keep the times at which these happened.
func TraceLater(begin func(context.Context) context.Context) txn.TxnOption {
	return access.TraceLater(begin).(txn.TxnOption)
}

// StartTrace begins the span that [TraceLater] delayed, and returns ctx with the
// span that begin made. Nothing else may use the transaction until it returns. For
// a transaction without TraceLater it does nothing.
func StartTrace(ctx context.Context, tx *txn.Txn) context.Context {
	return access.TransactionOf(tx).Trace(ctx)
}

// Telemetry returns where the client's traces, metrics and log records go.
func Telemetry(client *txn.Client) (trace.TracerProvider, metric.MeterProvider, *slog.Logger) {
	st := access.ResolverOf(client).Store
	return st.Config.TracerProvider, st.Config.MeterProvider, st.Log
}
