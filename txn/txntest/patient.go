package txntest

import (
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// Patient lets a client keep its locks however long a row does not answer. It is for tests that hold
// requests back, to let something else happen first.
func Patient(c *txn.Client) { access.ResolverOf(c).Store.SetMinStall(24 * time.Hour) }
