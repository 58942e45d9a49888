package row

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/format"
)

const (
	// minBackoff is about one Bigtable round trip: asking faster gains nothing.
	// maxBackoff is short for an outage, because all transactions of the process
	// wait here, and long enough that a process costs a service in trouble less
	// than one request a second.
	minBackoff = 10 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// ErrVanished says that the row is missing and has to be initialised (again).
var ErrVanished = errors.New("tso: oracle row is missing")

// Retryable reports whether the same request may succeed later. It is true for
// every error of a server except for those listed here.
func Retryable(err error) bool {
	switch {
	case errors.Is(err, ErrVanished):
		return true
	case errors.Is(err, format.ErrNotInitialized): // whatever the status in it
		return false
	case errors.Is(err, context.DeadlineExceeded): // the RPC's own timeout
		return true
	}
	st, ok := status.FromError(err)
	if !ok {
		return false // this process refused the row or the request, and will again
	}
	switch st.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.NotFound, codes.InvalidArgument,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	case codes.Canceled:
		// A proxy may have cancelled the stream; a closed client stays closed.
		return !strings.Contains(err.Error(), "client connection is closing")
	}
	return true
}

// BlamesRow reports whether an increment may have failed because of the value
// in the row. Bigtable does not document the code for that, and the emulator
// uses another one.
func BlamesRow(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.Internal, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// Backoff returns how long to wait after the given number of failures, between
// one half and the whole of an exponentially growing step. The jitter keeps
// processes that failed at the same time from retrying at the same time.
func Backoff(failures int) time.Duration {
	d := maxBackoff
	if shift := failures - 1; shift < 8 { // 10 ms << 8 is above maxBackoff
		d = min(minBackoff<<shift, maxBackoff)
	}
	return d/2 + rand.N(d/2)
}
