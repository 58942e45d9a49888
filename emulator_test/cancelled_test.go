package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestOperationsCancelledAtEveryRequest ends the caller's context at one request of each operation,
// each in turn. The operation returns at once, with the context's error. It has changed nothing,
// unless it reports an unknown outcome.
func TestOperationsCancelledAtEveryRequest(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, op := range append(operations(), packageOperations()...) {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			undisturbed := requestsOf(t, op)
			for _, request := range slices.Sorted(maps.Keys(undisturbed.requests)) {
				got := disturb(t, op, request, codes.Canceled)
				unknown := errors.Is(got.err, txn.ErrUndetermined)
				switch {
				case !got.fired:
					t.Errorf("%s: it was not sent", request)
				case got.took > 0:
					t.Errorf("%s: %v after %v", request, got.err, got.took)
				case got.err == nil && (fmt.Sprint(got.result) != fmt.Sprint(undisturbed.result) || got.after != undisturbed.after):
					t.Errorf("%s: %v and then %s, want %v and %s", request, got.result, got.after, undisturbed.result, undisturbed.after)
				case got.err != nil && !errors.Is(got.err, context.Canceled):
					t.Errorf("%s: %v", request, got.err)
				case got.err != nil && got.after != got.before && !op.parts && !(unknown && got.after == undisturbed.after):
					t.Errorf("%s: %v, and the rows changed from %s to %s", request, got.err, got.before, got.after)
				}
			}
		})
	}
}

// requestsOf runs an operation undisturbed, and returns the requests that it sends each time.
func requestsOf(t *testing.T, op operation) (r ran) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { r = runRefused(t, op, "", codes.OK) })
	// Two locks of a transaction are resolved at the same time, so the requests vary.
	for range 4 {
		synctest.Test(t, func(t *testing.T) {
			again := runRefused(t, op, "", codes.OK)
			maps.DeleteFunc(r.requests, func(request string, _ bool) bool { return !again.requests[request] })
		})
	}
	if r.err != nil || len(r.requests) == 0 {
		t.Fatalf("%v; %d requests", r.err, len(r.requests))
	}
	return r
}

// disturb runs an operation whose request fails with the code.
func disturb(t *testing.T, op operation, request string, code codes.Code) (r ran) {
	t.Helper()
	for range 20 { // mostly the first one
		if synctest.Test(t, func(t *testing.T) { r = runRefused(t, op, request, code) }); r.fired {
			break
		}
	}
	return r
}
