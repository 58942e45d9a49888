package txntest

import (
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/internal/access"
)

// BulkFrom lets a client lock the rows of a table in bulk if there are so many of them beside the
// primary's, instead of three. It is for tests whose transactions write few rows, and, with many rows, for
// tests of prewrites one by one.
func BulkFrom(c *txn.Client, rows int) { access.ResolverOf(c).Store.SetBulkFrom(rows) }

// WithBulkFrom does that for all clients of an Env.
func WithBulkFrom(rows int) Option { return func(o *options) { o.bulkFrom = rows } }
