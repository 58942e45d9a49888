package tso

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso/format"
)

// An Oracle hands out timestamps that are strictly increasing in real time
// across all processes that share it: if one caller received a timestamp before
// another caller asked, the other caller's timestamp is larger. Uniqueness alone
// is not enough: snapshot isolation depends on this order.
//
// Timestamps lie between [Min] and [Max]: data from before the adoption of a table has
// smaller ones, so a transaction at a timestamp below Min would show the future. A
// client of package txn refuses all others.
//
// Implementations are safe for concurrent use.
type Oracle interface {
	// Timestamp returns the next timestamp. It fails when ctx ends, and then
	// errors.Is with context.Canceled or context.DeadlineExceeded holds; it
	// also fails when the oracle cannot answer at all. An error changes
	// nothing, except that a number may be lost that no caller ever receives.
	Timestamp(ctx context.Context) (Timestamp, error)
}

// MaxCount is how many timestamps one request may ask a server for: a tenth of
// a second of oracle time, and more callers than a process has waiting at once.
// A [Client] splits larger requests.
const MaxCount = 100_000

// FormatVersion is the version of the served oracle's records and requests.
const FormatVersion = format.Version
