package txntest

import "github.com/percolator-bigtable/percolator/txn/internal/gctime"

// ShortenGC divides the durations that garbage collection and clients rely on
// between them (how long a safe point is gone by, the fence, the shortest
// retention, the lease) by n, for tests in real time. It is for the whole
// process, and every process of a deployment has to do the same, before it makes
// a client. In a testing/synctest bubble there is no need for it.
func ShortenGC(n int) { gctime.Shorten(n) }
