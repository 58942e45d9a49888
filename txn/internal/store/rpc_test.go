package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/format"
)

// TestKindsOfErrors: what another try of a failed request may do, for each answer of Bigtable.
func TestKindsOfErrors(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		says := ""
		switch code {
		case codes.DeadlineExceeded:
			says = "the request's own deadline, not the caller's"
		case codes.FailedPrecondition:
			says = "at most 256 MB of a row"
		case codes.NotFound:
			says = "percctl table init"
		}
		err := WrapRPC(t.Context(), "read", "a", status.Error(code, "injected"))
		if !strings.Contains(err.Error(), `read on table "a": `) || !strings.Contains(err.Error(), says) || strings.HasSuffix(err.Error(), ")") != (says != "") {
			t.Errorf("%v: %v", code, err)
		}
		permanent, refused, again := false, false, false
		switch code {
		case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented, codes.Unauthenticated:
			permanent, refused = true, true
			if code == codes.FailedPrecondition {
				if other := WrapRPC(t.Context(), "conditional mutation", "a", status.Error(code, "injected")); !strings.Contains(other.Error(), "single-cluster routing") || RowTooLarge(other) {
					t.Error(other)
				}
			}
		case codes.ResourceExhausted, codes.OutOfRange:
			refused = true
		case codes.Unavailable, codes.Aborted, codes.DeadlineExceeded, codes.Internal:
			again = true
		}
		for _, err := range []error{err, fmt.Errorf("wrapped: %w", err)} {
			if Permanent(err) != permanent || Transient(err) == permanent || Refused(err) != refused || CutShort(t.Context(), err) != again {
				t.Errorf("%v: permanent %t, transient %t, refused %t, cut short %t", code, Permanent(err), Transient(err), Refused(err), CutShort(t.Context(), err))
			}
			if RowTooLarge(err) != (code == codes.FailedPrecondition) {
				t.Errorf("%v: row too large: %t", code, RowTooLarge(err))
			}
			if status.Code(err) != code || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%v: it matches another error: %v", code, err)
			}
			if ownDeadline(t.Context(), err) != (code == codes.DeadlineExceeded) {
				t.Errorf("%v: own deadline: %t", code, !(code == codes.DeadlineExceeded))
			}
		}
	}
	if WrapRPC(t.Context(), "read", "a", nil) != nil || CutShort(t.Context(), nil) {
		t.Error("no error is an error")
	}
	// An error that is no answer of Bigtable.
	other := errors.New("other")
	if Permanent(other) || Transient(other) || Refused(other) || CutShort(t.Context(), other) {
		t.Error("an error of nobody is known")
	}
	if old := fmt.Errorf("wrapped: %w", &format.TooOldError{}); !Permanent(old) || Transient(old) || Refused(old) {
		t.Error("a timestamp that is too old: permanent, and another one may do")
	}
	// Only the caller's context makes an error match a context's.
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(format.ErrConflict)
	for _, in := range []error{status.Error(codes.Canceled, "injected"), context.DeadlineExceeded} {
		err := WrapRPC(ended, "read", "a", in)
		if !errors.Is(err, context.Canceled) || errors.Is(err, format.ErrConflict) || CutShort(ended, err) || ownDeadline(ended, err) {
			t.Errorf("%v after the caller's end: %v", in, err)
		}
	}
	if err := WrapRPC(t.Context(), "read", "a", context.DeadlineExceeded); status.Code(err) != codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the request's deadline: %v", err)
	}
}

// TestEnded: what an operation that ended with its context returns.
func TestEnded(t *testing.T) {
	last := errors.New("last")
	plain, cancelPlain := context.WithCancel(t.Context())
	cancelPlain()
	cause, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(format.ErrConflict)
	for _, tt := range []struct {
		ctx  context.Context
		last error
		want string
	}{
		{plain, nil, "working: context canceled"},
		{plain, last, "working: context canceled (last error: last)"},
		{plain, fmt.Errorf("x: %w", context.Canceled), "working: context canceled"},
		{cause, nil, "working: context canceled: transaction conflict"},
	} {
		err := Ended(tt.ctx, "working", tt.last)
		if err.Error() != tt.want || !errors.Is(err, context.Canceled) || errors.Is(err, format.ErrConflict) || errors.Is(err, last) != (tt.last == last) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

// TestBackoff: each wait is at most twice as long as the one before could be, and never longer
// than the bounds say.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var longest [6]time.Duration
		for range 200 {
			w := Backoff{Min: time.Second, Max: 5 * time.Second}.Start()
			for i := range longest {
				began := time.Now()
				if err := w.Wait(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
				longest[i] = max(longest[i], time.Since(began))
			}
		}
		for i, most := range []time.Duration{1, 2, 4, 5, 5, 5} {
			if most *= time.Second; longest[i] > most || longest[i] < most*3/4 {
				t.Errorf("wait %d took up to %v, want %v", i, longest[i], most)
			}
		}
		w := Backoff{Min: time.Hour, Max: time.Hour}.Start()
		began := time.Now()
		for range 10 {
			if err := w.Wait(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > 10*time.Second || took < 9*time.Second {
			t.Errorf("ten waits of at most a second took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
