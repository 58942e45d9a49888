// Package gctime holds the durations that keep garbage collection and clients
// apart. They are constants of the deployment: every client and every collector
// of it has to use the same ones. Only tests in real time change them, through
// txntest.
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

// shorter divides the durations.
var shorter atomic.Int64

func scale(d time.Duration) time.Duration { return d / time.Duration(max(1, shorter.Load())) }

// Shorten divides every duration by n, for tests in real time.
func Shorten(n int) { shorter.Store(int64(n)) }

// SafePointMaxAge is how long a client goes by a safe point that it has read. It
// is read again three times as often.
func SafePointMaxAge() time.Duration { return scale(safePointMaxAge) }

// MaxApply bounds a request that changes transactional cells without a
// condition: such a request is harmful when it lands late.
func MaxApply() time.Duration { return scale(maxApply) }

// Fence is how long a collector waits between publishing a safe point and its
// first change: until no client goes by an older one, and no unconditional
// request is under way that was sent by one. The slack is for monotonic clocks
// that do not run equally fast, and for what happens between a deadline and
// those who obey it.
func Fence() time.Duration { return scale(safePointMaxAge + maxApply + slack) }

// MinRetention is the shortest retention that a collector accepts. Whatever
// comes late by less does no harm: see the design note on garbage collection.
func MinRetention() time.Duration { return scale(minRetention) }

// HoldGrace is how long a token that was not renewed still holds the safe point
// back: a client with a long read may hang for a while.
func HoldGrace() time.Duration { return scale(holdGrace) }

// LeaseTTL is how long a collector that died keeps others from starting.
func LeaseTTL() time.Duration { return scale(leaseTTL) }
