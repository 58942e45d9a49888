package tso

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// minBackoff is about one Bigtable round trip: nothing is gained by asking
	// faster. maxBackoff is short for an outage, because all transactions of
	// the process wait here, and long enough that a process costs a service in
	// trouble less than one request a second.
	minBackoff = 10 * time.Millisecond
	maxBackoff = 2 * time.Second
)

// errRowVanished says that the row has to be initialised (again) first.
var errRowVanished = errors.New("tso: oracle row is missing")

// retryable reports whether the same request may do better later. Everything
// that the server may answer in passing is; what is listed here is not.
func retryable(err error) bool {
	switch {
	case errors.Is(err, errRowVanished):
		return true
	case errors.Is(err, ErrMode), errors.Is(err, ErrCorrupt), errors.Is(err, ErrNotInitialized), errors.Is(err, ErrExhausted):
		return false
	case errors.Is(err, context.DeadlineExceeded): // the RPC's own timeout
		return true
	}
	st, ok := status.FromError(err)
	if !ok {
		return false // refused on this side of the wire, and so will it be again
	}
	switch st.Code() {
	case codes.PermissionDenied, codes.Unauthenticated, codes.NotFound, codes.InvalidArgument,
		codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented:
		return false
	case codes.Canceled:
		// A cancelled stream may be a proxy's doing; a closed client stays closed.
		return !strings.Contains(err.Error(), "client connection is closing")
	}
	return true
}

// blamesRow reports whether an increment may have failed because of what the
// row holds. Which code says so is not documented, and differs on the emulator.
func blamesRow(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.Internal, codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}

// backoff returns how long to wait after the given number of failures, between
// one half and the whole of an exponentially growing step: the jitter keeps
// processes that failed together from returning together.
func backoff(failures int) time.Duration {
	d := maxBackoff
	if shift := failures - 1; shift < 8 { // 10 ms << 8 is past maxBackoff
		d = min(minBackoff<<shift, maxBackoff)
	}
	return d/2 + rand.N(d/2)
}
