package row

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/format"
)

// TestRetryable: which failures of a request may pass, and which may be the fault of the row's
// value.
func TestRetryable(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		again, blames := true, false
		switch code {
		case codes.PermissionDenied, codes.Unauthenticated, codes.NotFound, codes.Unimplemented:
			again = false
		case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
			again, blames = false, true
		case codes.Unknown, codes.Internal:
			blames = true
		}
		err := status.Error(code, "injected")
		if Retryable(err) != again || BlamesRow(err) != blames {
			t.Errorf("%v: retryable %t, blames the row %t", code, Retryable(err), BlamesRow(err))
		}
		if Retryable(fmt.Errorf("%w: %w", format.ErrNotInitialized, err)) {
			t.Errorf("not initialised, %v: retryable", code)
		}
	}
	for err, want := range map[error]bool{
		ErrVanished: true, fmt.Errorf("x: %w", ErrVanished): true, context.DeadlineExceeded: true,
		format.ErrNotInitialized: false, errors.New("other"): false, context.Canceled: false,
		status.Error(codes.Canceled, "grpc: the client connection is closing"): false,
	} {
		if Retryable(err) != want {
			t.Errorf("%v: retryable %t", err, Retryable(err))
		}
	}
}

// TestBackoff: pauses double from 10 ms to 2 s, and differ between processes.
func TestBackoff(t *testing.T) {
	for failures, most := range map[int]time.Duration{1: 10 * time.Millisecond, 2: 20 * time.Millisecond, 8: 1280 * time.Millisecond, 9: 2 * time.Second, 10: 2 * time.Second, 100: 2 * time.Second} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 1000 {
			d := Backoff(failures)
			shortest, longest = min(shortest, d), max(longest, d)
		}
		if shortest < most/2 || shortest > most*6/10 || longest >= most || longest < most*9/10 {
			t.Errorf("after %d failures: %v to %v, want %v to %v", failures, shortest, longest, most/2, most)
		}
	}
}
