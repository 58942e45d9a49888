// Package gctime holds the durations on which garbage collection and clients have to
// agree. They are constants, because every client and every collector of a deployment must
// use the same ones. Only tests in real time shorten them, through txntest.
//
// store and recovery use them to bound requests and to keep holds, and txn/gc uses them to
// wait long enough. The package imports nothing of the module.
package gctime

import (
	"sync/atomic"
	"time"
)

const (
	safePointMaxAge = 30 * time.Second
	maxApply        = time.Minute
	slack           = 30 * time.Second
	minRetention    = 10 * time.Minute
	leaseTTL        = 30 * time.Second
	holdGrace       = 5 * time.Minute
)

// divisor divides the durations in tests; 0 means 1.
var divisor atomic.Int64

func scale(d time.Duration) time.Duration { return d / time.Duration(max(1, divisor.Load())) }

// Shorten divides every duration by n, for tests in real time.
func Shorten(n int) { divisor.Store(int64(n)) }

// SafePointMaxAge is how long a client relies on a safe point that it has read: 30 s. A
// client reads the safe point again three times as often.
func SafePointMaxAge() time.Duration { return scale(safePointMaxAge) }

// MaxApply bounds the time of a request that changes transactional cells without a
// condition: 1 min. Such a request does harm if it takes effect late.
func MaxApply() time.Duration { return scale(maxApply) }

// Fence is how long a collector waits between publishing a safe point and its first
// change: 2 min. After that, no client relies on an older safe point, and no
// unconditional request that relied on one is under way. The sum contains 30 s for
// monotonic clocks that run at different speeds, and for the time between a deadline and
// the end of the work that obeys it.
func Fence() time.Duration { return scale(safePointMaxAge + maxApply + slack) }

// MinRetention is the shortest retention that a collector accepts: 10 min. What arrives
// less late than that does no harm; see docs/design/collection.md.
func MinRetention() time.Duration { return scale(minRetention) }

// HoldGrace is how long a worker token that was not renewed still holds the safe point
// back: 5 min. A client with a long read may hang for a while.
func HoldGrace() time.Duration { return scale(holdGrace) }

// LeaseTTL is how long the lease of a collector that died keeps others from starting:
// 30 s.
func LeaseTTL() time.Duration { return scale(leaseTTL) }
