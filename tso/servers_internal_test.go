package tso

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestErrorOfServers: a request for timestamps ends early only if no server may lead soon.
func TestErrorOfServers(t *testing.T) {
	standby := refused(&tsopb.NotLeader{Reason: "standing by"})
	standbyOf := refused(&tsopb.NotLeader{Reason: "standing by", LeaderAddress: "a:1"})
	trouble := refused(&tsopb.NotLeader{Reason: "the row is damaged", Trouble: tsopb.Trouble_TROUBLE_CORRUPT})
	down := status.Error(codes.Unavailable, "down")
	noOracle, noRight := status.Error(codes.Unimplemented, "no oracle"), status.Error(codes.PermissionDenied, "no right")
	if !errors.Is(standby, ErrNotLeader) || standby.Error() != "standing by" || standbyOf.Error() != "standing by; the leader it knows is a:1" || !errors.Is(trouble, ErrCorrupt) || errors.Is(trouble, ErrNotLeader) {
		t.Errorf("%v, %v, %v", standby, standbyOf, trouble)
	}
	for _, tt := range []struct {
		name   string
		errs   []error
		agreed error
	}{
		{"one that is down", []error{down}, nil},
		{"one stands by", []error{standby}, nil},
		{"all stand by", []error{standby, standbyOf}, nil},
		{"one is down, one stands by", []error{standby, down}, nil},
		{"one is no oracle", []error{down, noOracle}, noOracle},
		{"one is no oracle, one stands by", []error{noOracle, standby}, nil},
		{"the last one that is no oracle", []error{noOracle, noRight}, noRight},
		{"one has trouble", []error{down, trouble}, trouble},
		{"trouble counts more", []error{trouble, noOracle}, trouble},
		{"trouble, and one stands by", []error{trouble, standby}, nil},
	} {
		failed := []ServerError{{Address: "not asked"}}
		for i, err := range tt.errs {
			failed = append(failed, ServerError{Address: fmt.Sprint(i), Err: fmt.Errorf("wrapped: %w", err)})
		}
		if got := agreed(failed); (got == nil) != (tt.agreed == nil) || got != nil && !errors.Is(got, tt.agreed) {
			t.Errorf("%s: agreed %v, want %v", tt.name, got, tt.agreed)
		}
	}
	if agreed(nil) != nil || agreed([]ServerError{{}}) != nil {
		t.Error("agreed without an answer")
	}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := false
		switch code {
		case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			want = true
		}
		if final(status.Error(code, "x")) != want {
			t.Errorf("%v is final: %t", code, !want)
		}
	}
}
