package admin

import (
	"context"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// CheckWrites returns the error with which tx.Commit would refuse what tx has written so far,
// before it sends anything: a limit of Bigtable, a family that the table does not have, a
// column of an index that the client does not maintain. It writes nothing, and tx stays open.
// No other goroutine may use tx meanwhile.
func CheckWrites(ctx context.Context, tx *txn.Txn) error {
	return access.TransactionOf(tx).CheckWrites(ctx)
}
