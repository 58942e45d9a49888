package txntest

import "github.com/percolator-bigtable/percolator/txn/internal/gctime"

// ShortenGC divides the durations on which garbage collection and clients agree by n:
// how long a client uses a safe point, the fence, the shortest retention, the lease.
// It is for tests in real time, and applies to the whole process. Every process of a
// deployment must call it with the same n before it makes a client. In a
// testing/synctest bubble it is not needed.
func ShortenGC(n int) { gctime.Shorten(n) }
