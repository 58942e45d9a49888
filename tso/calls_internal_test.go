package tso

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestCallLeader: which servers the lock service asks, in which order and for how long, and which of their
// errors it returns.
func TestCallLeader(t *testing.T) {
	type answer struct {
		err   error
		after time.Duration
	}
	ok, hangs := answer{}, answer{after: time.Hour}
	fails := func(c codes.Code, text string) answer { return answer{err: status.Error(c, text)} }
	standby, down := fails(codes.Unavailable, ErrNotLeader.Error()), fails(codes.Unavailable, "down")
	noOracle, full, full2 := fails(codes.Unimplemented, "no oracle"), fails(codes.ResourceExhausted, "full"), fails(codes.ResourceExhausted, "full, too")
	code := func(c codes.Code) func(error) bool { return func(err error) bool { return status.Code(err) == c } }
	unavailable := func(reasons ...string) func(error) bool {
		return func(err error) bool {
			var u *UnavailableError
			if !errors.As(err, &u) || !errors.Is(err, context.DeadlineExceeded) || len(u.Servers) != len(reasons) {
				return false
			}
			for i, s := range u.Servers {
				if s.Address != "passthrough:"+string(rune('a'+i)) || s.Err == nil || !strings.Contains(s.Err.Error(), reasons[i]) {
					return false
				}
			}
			return true
		}
	}
	for _, tt := range []struct {
		name    string
		answers []answer
		leader  int
		leaves  time.Duration // when the caller's context ends
		ends    time.Duration // when the caller's deadline is
		closes  bool          // the client is closed by the first call
		err     func(error) bool
		asked   string // the first of them, or all
		took    time.Duration
	}{
		{name: "the first", answers: []answer{ok, hangs}, asked: "a"},
		{name: "the leader first, and around", answers: []answer{ok, down, down}, leader: 1, asked: "bca"},
		{name: "not known yet", answers: []answer{fails(codes.Aborted, "x"), ok}, err: code(codes.Aborted), asked: "a"},
		{name: "one stands by", answers: []answer{standby, ok}, asked: "ab"},
		{name: "one hangs", answers: []answer{hangs, ok}, asked: "ab", took: time.Second},
		{name: "one is no oracle, one is down", answers: []answer{down, noOracle}, err: code(codes.Unimplemented), asked: "ab"},
		{name: "one is no oracle, one stands by", answers: []answer{standby, noOracle}, err: unavailable("not the leader", "no oracle"), asked: "abab", took: 10 * time.Second},
		{name: "one is full", answers: []answer{full, ok}, asked: "ab"},
		{name: "one is full, one is down", answers: []answer{full, down}, err: func(err error) bool { return errors.Is(err, ErrLimit) && status.Code(err) == codes.ResourceExhausted }, asked: "ab"},
		{name: "all are full", answers: []answer{full, full2}, err: func(err error) bool {
			return errors.Is(err, ErrLimit) && strings.HasSuffix(err.Error(), "desc = full")
		}, asked: "ab"},
		{name: "all are down", answers: []answer{down, down}, err: unavailable("down", "down"), asked: "ababab", took: 10 * time.Second},
		{name: "all hang", answers: []answer{hangs}, err: unavailable("deadline"), asked: "aaaaaaaaa", took: 10 * time.Second},
		{name: "the caller's deadline", answers: []answer{hangs}, ends: 1500 * time.Millisecond, err: unavailable("deadline"), asked: "aa", took: 1500 * time.Millisecond},
		{name: "the caller leaves", answers: []answer{hangs, ok}, leaves: 300 * time.Millisecond, err: func(err error) bool {
			return errors.Is(err, context.Canceled) && !errors.Is(err, ErrUnavailable)
		}, asked: "a", took: 300 * time.Millisecond},
		{name: "the client is closed", answers: []answer{down, ok}, closes: true, err: func(err error) bool { return err == ErrClosed }, asked: "a"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newFleet(t, 10*time.Second, make([][]reply, len(tt.answers))...)
			s := r.servers
			s.leader.Store(int32(tt.leader))
			ctx, leave := context.WithCancel(t.Context())
			if tt.ends > 0 {
				ctx, leave = context.WithTimeout(t.Context(), tt.ends)
			}
			defer leave()
			if tt.leaves > 0 {
				defer time.AfterFunc(tt.leaves, leave).Stop()
			}
			var asked strings.Builder
			var rounds []time.Time
			began := time.Now()
			err := s.callLeader(ctx, func(ctx context.Context, client tsopb.OracleClient) error {
				name := client.(*link).OracleClient.(*fakeServer).name
				asked.WriteString(name)
				if name == "a" {
					rounds = append(rounds, time.Now())
				}
				if tt.closes {
					s.end()
				}
				a := tt.answers[name[0]-'a']
				select {
				case <-time.After(a.after):
					return a.err
				case <-ctx.Done():
					return status.FromContextError(ctx.Err()).Err()
				}
			})
			if took := time.Since(began); (err == nil) != (tt.err == nil) || err != nil && !tt.err(err) || took != tt.took {
				t.Errorf("%s: %v after %v", tt.name, err, took)
			}
			if got := asked.String(); got != tt.asked && (tt.took < 10*time.Second || !strings.HasPrefix(got, tt.asked)) {
				t.Errorf("%s: asked %s, want %s", tt.name, got, tt.asked)
			}
			for i := 1; tt.name == "all are down" && i < len(rounds)-1; i++ {
				pause := min(roundPause<<min(i-1, 10), maxRoundPause)
				if got := rounds[i].Sub(rounds[i-1]); got < pause/2 || got >= pause*3/2 {
					t.Errorf("pause %d is %v, want about %v", i, got, pause)
				}
			}
		})
	}
}
