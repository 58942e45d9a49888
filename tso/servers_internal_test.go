package tso

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestRound: in which order servers are asked, each once, until the caller leaves.
func TestRound(t *testing.T) {
	for _, tt := range []struct {
		leader  int32
		named   string // by the server that is asked first
		answers int    // how many servers fail before one answers
		leaves  bool
		want    string
	}{
		{0, "", 9, false, "abc"}, {2, "", 9, false, "cab"}, {1, "c", 9, false, "bca"}, {1, "a", 9, false, "bac"},
		{1, "b", 9, false, "bac"}, {1, "x", 9, false, "bac"}, {1, "c", 1, false, "bc"}, {1, "", 9, true, "b"},
	} {
		r, _ := newFleet(t, time.Second, nil, nil, nil)
		s, asked, named := r.servers, "", tt.named
		s.leader.Store(tt.leader)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		err := s.round(ctx, func(r *remote) (string, error) {
			if asked += strings.TrimPrefix(r.address, "passthrough:"); len(asked) > tt.answers {
				return "", nil
			}
			if tt.leaves {
				leave()
			}
			leader := named
			named = ""
			return "passthrough:" + leader, errors.New("no answer of " + asked)
		})
		if asked != tt.want || (err == nil) != (tt.answers == 1) || tt.leaves && err.Error() != "no answer of b" {
			t.Errorf("%+v: asked %s, %v", tt, asked, err)
		}
	}
}

// TestErrorOfServers: of the errors of several servers, the one that says most is reported, and a round
// ends early only if no server may lead soon.
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
		name         string
		errs         []error
		best, agreed error
	}{
		{"one that is down", []error{down}, down, nil},
		{"one stands by", []error{standby}, standby, nil},
		{"all stand by", []error{standby, standbyOf}, standby, nil},
		{"one is down, one stands by", []error{standby, down}, down, nil},
		{"one is no oracle", []error{down, noOracle}, noOracle, noOracle},
		{"one is no oracle, one stands by", []error{noOracle, standby}, noOracle, nil},
		{"the last one that is no oracle", []error{noOracle, noRight}, noOracle, noRight},
		{"one has trouble", []error{down, trouble}, down, trouble},
		{"trouble counts more", []error{trouble, noOracle}, noOracle, trouble},
		{"trouble, and one stands by", []error{trouble, standby}, trouble, nil},
	} {
		if got := best(tt.errs); got != tt.best {
			t.Errorf("%s: best %v, want %v", tt.name, got, tt.best)
		}
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
