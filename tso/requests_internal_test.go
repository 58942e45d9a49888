package tso

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// A reply is what a server does with one request.
type reply struct {
	first   Timestamp
	count   uint32 // 0: as many as were asked for
	refusal *tsopb.NotLeader
	err     error
	after   time.Duration
	late    bool          // the answer is there when the stream is cancelled
	lingers time.Duration // after that
}

// fakeServer answers requests one by one, the last ones like the last reply.
type fakeServer struct {
	tsopb.OracleClient
	name    string
	replies []reply
	fleet   *fleet
}

// A fleet is the servers of one requester, and what they were asked.
type fleet struct {
	asked   []string // the name of a server and a count
	at      []time.Time
	streams []context.Context
}

func (s *fakeServer) Timestamps(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[tsopb.TimestampsRequest, tsopb.TimestampsResponse], error) {
	if next := s.replies[0]; next.err != nil && next.count > 0 {
		s.fleet.note(s.name, 0)
		return nil, next.err
	}
	s.fleet.streams = append(s.fleet.streams, ctx)
	return &fakeStream{ctx: ctx, server: s}, nil
}

func (f *fleet) note(name string, count uint32) {
	f.asked, f.at = append(f.asked, fmt.Sprintf("%s%d", name, count)), append(f.at, time.Now())
}

type fakeStream struct {
	grpc.BidiStreamingClient[tsopb.TimestampsRequest, tsopb.TimestampsResponse]
	ctx    context.Context
	server *fakeServer
	req    *tsopb.TimestampsRequest
}

func (s *fakeStream) Send(req *tsopb.TimestampsRequest) error {
	s.req = req
	return nil
}

func (s *fakeStream) RecvMsg(m any) error {
	if s.req == nil || s.req.FormatVersion != FormatVersion {
		return status.Error(codes.InvalidArgument, "no request")
	}
	count, r := s.req.Count, s.server.replies[0]
	s.req = nil
	s.server.fleet.note(s.server.name, count)
	if len(s.server.replies) > 1 {
		s.server.replies = s.server.replies[1:]
	}
	select {
	case <-time.After(r.after):
	case <-s.ctx.Done():
		<-time.After(r.lingers)
		if !r.late {
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
	if r.err != nil {
		return r.err
	}
	res := m.(*tsopb.TimestampsResponse)
	res.First, res.Count, res.NotLeader = int64(r.first), max(r.count, 0), r.refusal
	if r.count == 0 && r.refusal == nil {
		res.Count = count
	}
	return nil
}

// newFleet returns a requester of servers named a, b and so on.
func newFleet(t *testing.T, timeout time.Duration, servers ...[]reply) (*requester, *fleet) {
	t.Helper()
	cfg := ClientConfig{Timeout: timeout, AttemptTimeout: time.Second}
	for i := range servers {
		cfg.Addresses = append(cfg.Addresses, "passthrough:"+string(rune('a'+i)))
	}
	all, err := dialServers(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(all.hangUp)
	f := &fleet{}
	for i, r := range all.all {
		r.link.Store(&link{r.link.Load().conn, &fakeServer{name: string(rune('a' + i)), replies: servers[i], fleet: f}})
	}
	log := slog.New(slog.DiscardHandler)
	return &requester{servers: all, log: log, tel: telemetry.New(telemetry.RoleClient, nil, nil, log)}, f
}

// TestAsk: which servers are asked, in which order and for how long, what is returned, and where the next
// request starts.
func TestAsk(t *testing.T) {
	const at = Timestamp(1795152600000000)
	ok := []reply{{first: at}}
	refuses := func(leader string) []reply {
		return []reply{{refusal: &tsopb.NotLeader{Reason: "no", LeaderAddress: leader}}}
	}
	fails := func(c codes.Code) []reply { return []reply{{err: status.Error(c, "injected")}} }
	refusesToOpen := []reply{{err: status.Error(codes.Unavailable, "injected"), count: 1}}
	trouble := []reply{{refusal: &tsopb.NotLeader{Reason: "the row is damaged", Trouble: tsopb.Trouble_TROUBLE_CORRUPT}}}
	hangs := []reply{{after: time.Hour}}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	reasons := func(want ...string) func(error) bool {
		return func(err error) bool {
			var u *UnavailableError
			if !errors.As(err, &u) || len(u.Servers) != len(want) {
				return false
			}
			for i, s := range u.Servers {
				if s.Address != "passthrough:"+string(rune('a'+i)) || (s.Err == nil) != (want[i] == "") || s.Err != nil && !strings.Contains(s.Err.Error(), want[i]) {
					return false
				}
			}
			return true
		}
	}
	for _, tt := range []struct {
		name      string
		servers   [][]reply
		leader    int
		high      Timestamp
		ago       time.Duration // when the request started
		timeout   time.Duration // 10 s unless it is set
		leaves    time.Duration // when the client is closed
		abandoned bool
		err       func(error) bool // none: the answer is at
		asked     string           // the first of them
		only      bool             // these and no more
		took      time.Duration    // exactly, unless negative
		next      int              // the server to ask first
		failures  uint64           // unless the number depends on chance
		failovers uint64
	}{
		{name: "the first answers", servers: [][]reply{ok, hangs}, asked: "a7", only: true},
		{name: "the last leader first", servers: [][]reply{hangs, ok}, leader: 1, asked: "b7", only: true, next: 1},
		{name: "a hint", servers: [][]reply{refuses("passthrough:c"), hangs, ok}, asked: "a7 c7", only: true, next: 2, failures: 1, failovers: 1},
		{name: "a hint to itself", servers: [][]reply{refuses("passthrough:a"), ok, hangs}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "a hint to an unknown one", servers: [][]reply{refuses("x"), ok, hangs}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "hints in a circle", servers: [][]reply{refuses("passthrough:b"), refuses("passthrough:a"), ok}, asked: "a7 b7 c7", only: true, next: 2, failures: 2, failovers: 2},
		{name: "one is down", servers: [][]reply{fails(codes.Unavailable), ok}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "a stream cannot begin", servers: [][]reply{refusesToOpen, ok}, asked: "a0 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "one hangs", servers: [][]reply{hangs, ok}, asked: "a7 b7", only: true, took: time.Second, next: 1, failures: 1, failovers: 1},
		{name: "one hangs, late in the time", servers: [][]reply{hangs, ok}, ago: 9700 * time.Millisecond, err: reasons("no answer in time", ""), asked: "a7", only: true, took: 300 * time.Millisecond, failures: 1},
		{name: "no time is left", servers: [][]reply{hangs, ok}, ago: 11 * time.Second, err: reasons("no answer in time", ""), asked: "a7", only: true, took: 1, failures: 1},
		{name: "the second has what is left", servers: [][]reply{hangs, hangs, ok}, timeout: 1500 * time.Millisecond, err: reasons("after 1s", "after 500ms", ""), asked: "a7 b7", only: true, took: 1500 * time.Millisecond, next: 1, failures: 2, failovers: 1},
		{name: "all hang", servers: [][]reply{hangs, hangs}, timeout: 3500 * time.Millisecond, err: reasons("after 1s", "after 1s"), asked: "a7 b7 a7 b7", only: true, took: 3500 * time.Millisecond, next: 1, failures: 4, failovers: 3},
		{name: "a short try says less", servers: [][]reply{{{err: status.Error(codes.Unavailable, "injected")}, {after: time.Hour}}}, timeout: 100 * time.Millisecond, err: reasons("injected"), asked: "a7 a7", only: true, took: 100 * time.Millisecond, failures: 2},
		{name: "a whole try says more", servers: [][]reply{{{err: status.Error(codes.Unavailable, "injected")}, {after: time.Hour}}}, timeout: 1500 * time.Millisecond, err: reasons("after 1s"), asked: "a7 a7 a7", only: true, took: 1500 * time.Millisecond, failures: 3},
		{name: "nobody leads", servers: [][]reply{refuses(""), refuses("")}, err: reasons("no", "no"), asked: "a7 b7 a7 b7 a7", took: 10 * time.Second, next: 1},
		{name: "one leads in the second round", servers: [][]reply{{refuses("")[0], {first: at}}, refuses("passthrough:a")}, asked: "a7 b7 a7", only: true, took: -1, failures: 2, failovers: 2},
		{name: "the client is closed", servers: [][]reply{hangs, ok}, leaves: 300 * time.Millisecond, err: is(ErrClosed), asked: "a7", only: true, took: 300 * time.Millisecond, failures: 1},
		{name: "nobody waits", servers: [][]reply{fails(codes.Unavailable), ok}, abandoned: true, err: reasons("injected", ""), asked: "a7", only: true, failures: 1},
		{name: "backwards", servers: [][]reply{ok, ok, ok}, leader: 2, high: at, err: func(err error) bool {
			var b *BackwardsError
			return errors.As(err, &b) && *b == BackwardsError{Address: "passthrough:c", Got: at, High: at}
		}, asked: "c7", only: true, next: 0, failures: 1, failovers: 1},
		{name: "backwards, and nobody else", servers: [][]reply{ok}, high: at + 1, err: is(ErrBackwards), asked: "a7", only: true, failures: 1},
		{name: "just above", servers: [][]reply{ok}, high: at - 1, asked: "a7", only: true},
		{name: "trouble", servers: [][]reply{trouble, fails(codes.Unavailable), fails(codes.Unimplemented)}, err: is(ErrCorrupt), asked: "a7 b7 c7", only: true, next: 0, failures: 3, failovers: 3},
		{name: "trouble of one", servers: [][]reply{trouble, ok}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "no oracle", servers: [][]reply{fails(codes.Unavailable), fails(codes.Unavailable), fails(codes.Unimplemented)}, err: func(err error) bool { return status.Code(err) == codes.Unimplemented }, asked: "a7 b7 c7", only: true, next: 0, failures: 3, failovers: 3},
		{name: "no oracle anywhere", servers: [][]reply{fails(codes.Unimplemented), fails(codes.Unimplemented)}, err: func(err error) bool { return status.Code(err) == codes.Unimplemented }, asked: "a7 b7", only: true, next: 1, failures: 2, failovers: 1},
		{name: "fewer than asked for", servers: [][]reply{{{first: at, count: 6}}, ok}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "too small", servers: [][]reply{{{first: Min - 1}}, ok}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
		{name: "too large", servers: [][]reply{{{first: Max - 5}}, ok}, asked: "a7 b7", only: true, next: 1, failures: 1, failovers: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			timeout := 10 * time.Second
			if tt.timeout != 0 {
				timeout = tt.timeout
			}
			r, f := newFleet(t, timeout, tt.servers...)
			r.servers.leader.Store(int32(tt.leader))
			r.high = tt.high
			ctx, cancel := context.WithCancel(t.Context())
			if tt.leaves > 0 {
				ctx, cancel = context.WithTimeout(t.Context(), tt.leaves)
			}
			defer cancel()
			began := time.Now()
			first, err := r.ask(ctx, 7, began.Add(-tt.ago), func() bool { return tt.abandoned })
			took := time.Since(began)
			want := at
			if tt.err != nil {
				want = 0
			}
			if first != want || (err == nil) != (tt.err == nil) || err != nil && !tt.err(err) || tt.took >= 0 && took != tt.took {
				t.Errorf("%s: %d, %v after %v", tt.name, first, err, took)
			}
			if asked := strings.Join(f.asked, " "); asked != tt.asked && (tt.only || !strings.HasPrefix(asked, tt.asked+" ")) {
				t.Errorf("%s: asked %s, want %s", tt.name, asked, tt.asked)
			}
			if last := f.at[len(f.at)-1]; tt.err != nil && took > 1 && !last.Before(began.Add(took)) {
				t.Errorf("%s: asked after the timeout", tt.name)
			}
			if next := int(r.servers.leader.Load()); next != tt.next {
				t.Errorf("%s: the next request starts at %d, want %d", tt.name, next, tt.next)
			}
			if failures, failovers := r.failures.Load(), r.failovers.Load(); tt.only && (failures != tt.failures || failovers != tt.failovers) {
				t.Errorf("%s: %d failures, %d failovers; want %d, %d", tt.name, failures, failovers, tt.failures, tt.failovers)
			}
			answers, timestamps, high := uint64(0), uint64(0), tt.high
			if tt.err == nil {
				answers, timestamps, high = 1, 7, at+6
			}
			if r.answers.Load() != answers || r.timestamps.Load() != timestamps || r.high != high {
				t.Errorf("%s: %d answers, %d timestamps up to %d", tt.name, r.answers.Load(), r.timestamps.Load(), r.high)
			}
			if errors.Is(err, ErrBackwards) && r.stream != nil {
				t.Errorf("%s: the stream stays", tt.name)
			}
			expired := r.expired(context.Canceled)
			if !errors.Is(expired, context.Canceled) || strings.Contains(expired.Error(), "last error") != (tt.err != nil) {
				t.Errorf("%s: then a caller who leaves gets %v", tt.name, expired)
			}
			open := 0
			for _, s := range f.streams {
				if s.Err() == nil {
					open++
				}
			}
			if (open == 1) != (r.stream != nil) || open > 1 || tt.err == nil && open != 1 {
				t.Errorf("%s: %d streams are open", tt.name, open)
			}
			r.hangUp()
			r.hangUp()
			if r.stream != nil || len(f.streams) > 0 && f.streams[len(f.streams)-1].Err() == nil {
				t.Errorf("%s: a stream is open after all", tt.name)
			}
		})
	}
}

// TestRoundsOfAsk: the pauses between two rounds through the servers double, up to a quarter of a second.
func TestRoundsOfAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := newFleet(t, 10*time.Second, []reply{{refusal: &tsopb.NotLeader{}}})
		if _, err := r.ask(t.Context(), 1, time.Now(), func() bool { return false }); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		for i := 1; i < len(f.at)-1; i++ {
			pause := min(roundPause<<min(i-1, 10), maxRoundPause)
			if got := f.at[i].Sub(f.at[i-1]); got < pause/2 || got >= pause*3/2 {
				t.Errorf("pause %d is %v, want about %v", i, got, pause)
			}
		}
		if n := len(f.at); n < 25 || n > 90 {
			t.Errorf("%d rounds", n)
		}
	})
}

// TestFill: a batch asks for ranges of MaxCount and the rest, on one stream.
func TestFill(t *testing.T) {
	const at = Timestamp(1795152600000000)
	for n, want := range map[int64][]string{1: {"a1"}, MaxCount: {"a100000"}, 2*MaxCount + 1: {"a100000", "a100000", "a1"}} {
		synctest.Test(t, func(t *testing.T) {
			r, f := newFleet(t, 10*time.Second, []reply{{first: at}, {first: at + MaxCount}, {first: at + 2*MaxCount}})
			b := newCallers()
			if err := r.fill(t.Context(), b, n); err != nil || !slices.Equal(f.asked, want) || len(b.firsts) != len(want) || len(f.streams) != 1 {
				t.Errorf("%d: asked %v on %d streams, %v, %v; want %v", n, f.asked, len(f.streams), b.firsts, err, want)
			}
			for i, first := range b.firsts {
				if first != at+Timestamp(i)*MaxCount {
					t.Errorf("%d: range %d is from %d", n, i, first)
				}
			}
			r.hangUp()
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r, f := newFleet(t, 10*time.Second, []reply{{first: at}, {err: status.Error(codes.Unimplemented, "injected")}})
		b := newCallers()
		if err := r.fill(t.Context(), b, MaxCount+1); status.Code(err) != codes.Unimplemented || len(f.asked) != 2 {
			t.Errorf("asked %v, %v", f.asked, err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a caller left, and another waits
		r, f := newFleet(t, 10*time.Second, []reply{{err: status.Error(codes.Unavailable, "injected")}}, []reply{{first: at}})
		b := newCallers()
		b.gone.Add(1)
		if err := r.fill(t.Context(), b, 2); err != nil || len(f.asked) != 2 {
			t.Errorf("asked %v, %v", f.asked, err)
		}
		r.hangUp()
		b.gone.Add(1)
		r.servers.leader.Store(0)
		if err := r.fill(t.Context(), b, 2); !errors.Is(err, ErrUnavailable) || len(f.asked) != 3 {
			t.Errorf("nobody waits: asked %v, %v", f.asked, err)
		}
	})
}

// TestStreamOfRequests: each request of a stream has its own time, and an answer of the last moment ends
// the stream.
func TestStreamOfRequests(t *testing.T) {
	const at = Timestamp(1795152600000000)
	synctest.Test(t, func(t *testing.T) {
		r, f := newFleet(t, 10*time.Second, []reply{
			{first: at, after: 900 * time.Millisecond}, {first: at + 1, after: 900 * time.Millisecond}, {after: time.Hour},
			{first: at + 2, after: time.Hour, late: true}, {first: at + 3},
		})
		step := func(patience time.Duration, want Timestamp, took time.Duration, streams int) {
			t.Helper()
			began := time.Now()
			first, _, err := r.attempt(t.Context(), 1, patience)
			if err != nil && (want != 0 || !errors.Is(err, errSlow) || !strings.Contains(err.Error(), patience.String())) || err == nil && first != want || time.Since(began) != took || len(f.streams) != streams {
				t.Errorf("%d, %v after %v on stream %d; want %d after %v on stream %d", first, err, time.Since(began), len(f.streams), want, took, streams)
			}
			<-time.After(time.Minute)
		}
		step(time.Second, at, 900*time.Millisecond, 1)
		step(time.Second, at+1, 900*time.Millisecond, 1)
		step(700*time.Millisecond, 0, 700*time.Millisecond, 1)
		if r.stream != nil || f.streams[0].Err() == nil {
			t.Error("a stream without an answer stays open")
		}
		step(500*time.Millisecond, at+2, 500*time.Millisecond, 2)
		step(500*time.Millisecond, at+3, 0, 3)
		r.hangUp()
	})
}

// TestCloseOfClient: Close returns when the request under way has ended, and its callers have ErrClosed.
func TestCloseOfClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newFleet(t, 10*time.Second, []reply{{after: time.Hour, lingers: 100 * time.Millisecond}})
		c := &Client{servers: r.servers, requests: r, wake: make(chan struct{}, 1)}
		c.forming.Store(newCallers())
		ctx, stop := context.WithCancel(t.Context())
		c.stop = stop
		c.worker.Go(func() { c.work(ctx) })
		asked := make(chan error, 1)
		go func() {
			_, err := c.Timestamp(t.Context())
			asked <- err
		}()
		synctest.Wait()
		began := time.Now()
		if err := c.Close(); err != nil || time.Since(began) != 100*time.Millisecond {
			t.Errorf("closed after %v: %v", time.Since(began), err)
		}
		if err := <-asked; err != ErrClosed {
			t.Error(err)
		}
	})
}

// TestPlausibleAnswers: a second answer is asked for only above a day after the last one, or above 50 years
// after the clock.
func TestPlausibleAnswers(t *testing.T) {
	const day = 24 * 3600 * 1000000
	synctest.Test(t, func(t *testing.T) {
		limit := FromTime(time.Now().AddDate(50, 0, 0))
		for _, tt := range []struct {
			high    Timestamp
			answers []Timestamp
			want    Timestamp
			asked   int
		}{
			{0, []Timestamp{limit}, limit, 1},
			{0, []Timestamp{limit + 1, limit + 2}, limit + 2, 2},
			{0, []Timestamp{limit + 1, limit + 1}, 0, 2},
			{limit, []Timestamp{limit + day}, limit + day, 1},
			{limit, []Timestamp{limit + day + 1, limit + day + 2}, limit + day + 2, 2},
			{limit, []Timestamp{limit + day + 1, limit + day}, 0, 2},
			{Max - 7, []Timestamp{Max - 6}, Max - 6, 1},
			{0, []Timestamp{Min}, Min, 1},
			{0, []Timestamp{limit + 1, 0}, 0, 2},
		} {
			var replies []reply
			for _, a := range tt.answers {
				replies = append(replies, reply{first: a})
				if a == 0 {
					replies[len(replies)-1].err = status.Error(codes.Unavailable, "injected")
				}
			}
			r, f := newFleet(t, 10*time.Second, replies)
			r.high = tt.high
			first, hint, err := r.attempt(t.Context(), 7, time.Second)
			high := tt.high
			if tt.want != 0 {
				high = tt.want + 6
			}
			if lost := slices.Contains(tt.answers, 0); lost != (status.Code(err) == codes.Unavailable) {
				t.Errorf("%+v: %v", tt, err)
			}
			if err == nil && first != tt.want || (err == nil) != (tt.want != 0) || hint != "" || len(f.asked) != tt.asked || r.high != high {
				t.Errorf("%+v: %d, %v, asked %d times", tt, first, err, len(f.asked))
			}
			r.hangUp()
		}
	})
}
