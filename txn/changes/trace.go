package changes

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// TraceLater keeps a transaction, and what it asks Bigtable, out of every trace
// until [Trace] is called, or until [Observe] meets a lock: for workers that
// look again and again and mostly find nothing to do. begin is called then,
// once, and returns a context with the span that the transaction's is to be
// below, which may be a new trace. The times of the transaction's span, of its
// start timestamp and of Observe's read are those at which they happened.
func TraceLater(begin func(context.Context) context.Context) txn.TxnOption {
	return access.TraceLater(begin).(txn.TxnOption)
}

// StartTrace begins the span that [TraceLater] has put off, and returns ctx with the
// span that begin made. Until it returns nothing else may use the transaction. It
// does nothing for a transaction that was begun without TraceLater.
func StartTrace(ctx context.Context, tx *txn.Txn) context.Context {
	return access.Transaction(tx).Trace(ctx)
}
