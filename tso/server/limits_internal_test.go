package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestBoundsOfRequests: as many requests and streams are open as the bounds say, and ended ones
// make room.
func TestBoundsOfRequests(t *testing.T) {
	l := newLimits(nil, nil)
	l.all, l.each = counts{connections: 2, requests: 3}, counts{long: 2}
	one, stream := counts{requests: 1}, counts{requests: 1, long: 1}
	begin := func(c *client, n counts, want string) {
		t.Helper()
		if reason, err := l.begin(c, n); reason != want || (err == nil) != (want == "") || err != nil && status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%q, %v; want %q", reason, err, want)
		}
	}
	a, b := &client{}, &client{}
	begin(a, stream, "")
	begin(a, stream, "")
	begin(a, stream, "streams")
	begin(a, one, "")
	begin(b, one, "requests")
	l.end(a, stream)
	begin(b, stream, "")
	begin(&client{excess: true}, one, "connections")
	if got := l.present(); got != (counts{requests: 3, long: 2}) {
		t.Errorf("open: %+v", got)
	}
	l.end(a, one)
	l.end(a, stream)
	l.end(b, stream)
	if got := l.present(); got != (counts{}) || a.used != got || b.used != got {
		t.Errorf("open after all: %+v, %+v, %+v", got, a.used, b.used)
	}
}

// TestBoundsOfConnections: the connections beyond the bound are refused their requests, and those
// beyond some more are not kept.
func TestBoundsOfConnections(t *testing.T) {
	l := newLimits(nil, nil)
	l.all.connections = 2
	excess := func() bool { return clientOf(conns{l}.TagConn(context.Background(), &stats.ConnTagInfo{})).excess }
	for n := 1; n <= 2+moreRefused; n++ {
		if !l.connected("", 1) {
			t.Fatalf("connection %d is not kept", n)
		}
		if excess() != (n > 2) {
			t.Fatalf("with %d connections, requests of the last are refused: %t", n, n <= 2)
		}
	}
	if l.connected("", 1) || l.present().connections != 2+moreRefused {
		t.Errorf("one more is kept: %+v", l.present())
	}
	l.connected("", -1)
	if !l.connected("", 1) || clientOf(context.Background()) != nil {
		t.Error("a connection that was closed makes no room")
	}
}

// TestBoundsOfHosts: one host gets half of the connections and requests, however many connections
// it opens, and the others get theirs.
func TestBoundsOfHosts(t *testing.T) {
	l := newLimits(nil, nil)
	l.all = counts{connections: 8, requests: 6}
	many, other := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 1}
	open := func(addr net.Addr) *client {
		if !l.connected(hostOf(addr), 1) {
			return nil
		}
		return clientOf(conns{l}.TagConn(context.Background(), &stats.ConnTagInfo{RemoteAddr: addr}))
	}
	var clients []*client
	for n := 1; n <= 4+moreRefused/2; n++ {
		c := open(many)
		if c == nil || c.excess != (n > 4) {
			t.Fatalf("connection %d: %+v", n, c)
		}
		clients = append(clients, c)
	}
	if open(many) != nil {
		t.Error("one host keeps more connections than that")
	}
	one := counts{requests: 1}
	for n, c := range clients[:4] {
		if reason, err := l.begin(c, one); (err == nil) != (n < 3) || (n == 3) != (reason == "requests") {
			t.Errorf("request %d: %q, %v", n+1, reason, err)
		}
	}
	// The refused ones count among all until they close.
	for range clients[4:] {
		l.connected(hostOf(many), -1)
	}
	c := open(other)
	if c == nil || c.excess {
		t.Fatalf("another host: %+v", c)
	}
	for n := range 3 {
		if _, err := l.begin(c, one); err != nil {
			t.Errorf("request %d of another host: %v", n+1, err)
		}
		l.end(clients[n], one)
	}
	for range 3 {
		l.end(c, one)
	}
	for range clients[:4] {
		l.connected(hostOf(many), -1)
	}
	l.connected(hostOf(other), -1)
	if len(l.hosts) != 0 || l.present() != (counts{}) {
		t.Errorf("left: %+v, %+v", l.hosts, l.present())
	}
}

// TestNamesOfClients: only clients whose certificate has one of the names are served.
func TestNamesOfClients(t *testing.T) {
	uri := &url.URL{Scheme: "spiffe", Host: "x", Path: "/shop"}
	with := func(c *x509.Certificate) context.Context {
		state := tls.ConnectionState{}
		if c != nil {
			state.VerifiedChains = [][]*x509.Certificate{{c, {DNSNames: []string{"ca"}}}, {{DNSNames: []string{"other"}}}}
		}
		return peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
	}
	named := &x509.Certificate{Subject: pkix.Name{CommonName: "common"}, DNSNames: []string{"dns"}, URIs: []*url.URL{uri}}
	common := &x509.Certificate{Subject: pkix.Name{CommonName: "common"}}
	if got, want := certificateNames(named), []string{"dns", "spiffe://x/shop"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	for _, tt := range []struct {
		names []string
		ctx   context.Context
		want  codes.Code
	}{
		{nil, t.Context(), codes.OK},
		{[]string{"dns"}, t.Context(), codes.Unauthenticated},
		{[]string{"dns"}, with(nil), codes.Unauthenticated},
		{[]string{"no", "dns"}, with(named), codes.OK},
		{[]string{"spiffe://x/shop"}, with(named), codes.OK},
		{[]string{"common"}, with(named), codes.PermissionDenied},
		{[]string{"common"}, with(common), codes.OK},
		{[]string{"ca", "other"}, with(named), codes.PermissionDenied},
	} {
		if err := newLimits(tt.names, nil).permit(tt.ctx); status.Code(err) != tt.want {
			t.Errorf("of %q: %v, want %v", tt.names, err, tt.want)
		}
	}
}

// TestPace: how fast one client and all together may take timestamps, by how far oracle time is
// ahead of the clock.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := func(l *limits, c *client, count, ahead tso.Timestamp, want time.Duration) {
			t.Helper()
			wait, err := l.pace(c, nil, count, ahead)
			if want < 0 && status.Code(err) != codes.ResourceExhausted || want >= 0 && (err != nil || wait != want) {
				t.Errorf("%d at %d ahead: %v, %v; want %v", count, ahead, wait, err, want)
			}
		}
		l, c := newLimits(nil, nil), &client{}
		pace(l, c, clientAhead, 0, 0) // all at once
		pace(l, c, 250_000, 0, 250*time.Millisecond)
		pace(l, c, 1, 0, -1) // which was not counted
		<-time.After(time.Millisecond)
		pace(l, c, 1000, 0, 250*time.Millisecond)
		<-time.After(time.Hour)
		pace(l, c, clientAhead, 0, 0) // and not more than that
		pace(l, c, 1000, 0, time.Millisecond)
		if l.common.each != nil {
			t.Errorf("at the clock, all clients together have used %+v", l.common)
		}

		l, c = newLimits(nil, nil), &client{}
		pace(l, c, clientAhead/2, allAhead/2, 0) // half of it, half as fast
		pace(l, c, 1000, allAhead/2, 2*time.Millisecond)

		l, c = newLimits(nil, nil), &client{}
		pace(l, c, 1000, allAhead, 8*time.Millisecond) // an eighth, with nothing at once
		<-time.After(time.Hour)
		pace(l, c, tso.MaxCount, allAhead, 0)
		pace(l, c, 1000, 2*allAhead, 2*time.Millisecond) // of all clients

		// Beyond, all parties together may take half of what the clock makes, of which a half is for
		// parties that take little.
		l = newLimits(nil, nil)
		rich := func(left float64) *client {
			return &client{party: &party{conns: fair{pool: credit{left, time.Now()}}}}
		}
		for range 2 {
			<-time.After(time.Hour)
			greedy := rich(2 * tso.MaxCount)
			pace(l, greedy, tso.MaxCount, allAhead, 0)
			pace(l, greedy, 1000, allAhead, 2*time.Millisecond)
			pace(l, rich(1e6), tso.MaxCount/4, allAhead, 0)
			pace(l, greedy, 1000, allAhead, 8*time.Millisecond) // the pool owes 1,000, and is half as fast
		}
	})
}

// TestPaceIsFair: a party that asks without end on 1,000 connections takes as much as one client, and
// others that take little do not wait, whether it has one certificate or one address, and however far
// oracle time is ahead. Neither do modest connections of the same party.
func TestPaceIsFair(t *testing.T) {
	long.RacedAtNight(t)
	const greedy, modest, each = 1000, 10, 20 // timestamps of a modest client in 100 ms
	for _, tt := range []struct {
		name    string
		parties int // that ask without end
		before  time.Duration
		most    time.Duration // ahead
		inside  bool          // the modest clients belong to the first of them
	}{
		{"one party", 1, 0, 6 * time.Second, false},
		{"one party, far ahead", 1, 70 * time.Second, 71 * time.Second, false},
		{"twenty parties", 20, 0, 60 * time.Second, false},
		{"twenty parties, far ahead", 20, 70 * time.Second, 71 * time.Second, false},
		{"inside the party", 1, 0, 6 * time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLimits(nil, nil)
				names := func(i int) []string { // certificates of odd parties, addresses of even ones
					if i%2 == 1 {
						return []string{fmt.Sprint("party", i)}
					}
					return nil
				}
				host := func(i int) string { return fmt.Sprint("10.0.0.", i) }
				var taken atomic.Int64
				begun := time.Now()
				ahead := func() time.Duration {
					return max(tt.before+time.Duration(taken.Load())*time.Microsecond-time.Since(begun), 0)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
				defer cancel()
				var all sync.WaitGroup
				ask := func(c *client, names []string, count tso.Timestamp) (time.Duration, error) {
					wait, err := l.pace(c, names, count, tso.Timestamp(ahead().Microseconds()))
					if err == nil {
						taken.Add(int64(count))
						<-time.After(wait)
					}
					return wait, err
				}
				for i := range greedy {
					all.Go(func() {
						for c := (&client{host: host(i % tt.parties)}); ctx.Err() == nil; {
							if _, err := ask(c, names(i%tt.parties), 10_000); err != nil {
								<-time.After(50 * time.Millisecond)
							}
						}
					})
				}
				var longest atomic.Int64
				var refused, served atomic.Int64
				for i := range modest {
					all.Go(func() {
						of := tt.parties + i
						if tt.inside {
							of = 0
						}
						for c := (&client{host: host(of)}); ctx.Err() == nil; <-time.After(100 * time.Millisecond) {
							wait, err := ask(c, names(of), each)
							if served.Add(1); err != nil {
								refused.Add(1)
							}
							for old := longest.Load(); int64(wait) > old && !longest.CompareAndSwap(old, int64(wait)); old = longest.Load() {
							}
						}
					})
				}
				most := ahead()
				for ctx.Err() == nil {
					most = max(most, ahead())
					<-time.After(10 * time.Millisecond)
				}
				all.Wait()
				t.Logf("%s ahead; of %d modest requests %d were refused, the others waited %s at most; %d timestamps taken", most, served.Load(), refused.Load(), time.Duration(longest.Load()), taken.Load())
				if refused.Load() > 0 || time.Duration(longest.Load()) > 5*time.Millisecond || served.Load() < 300 {
					t.Errorf("%d of %d modest requests were refused, the others waited %s at most", refused.Load(), served.Load(), time.Duration(longest.Load()))
				}
				if most > tt.most {
					t.Errorf("oracle time was %s ahead, want %s at most", most, tt.most)
				}
				if taken.Load() < 300_000 {
					t.Errorf("only %d timestamps in 6 s", taken.Load())
				}
			})
		})
	}
}

// TestLongRequests: streams count as long, and requests that end by themselves do not.
func TestLongRequests(t *testing.T) {
	for method, long := range map[string]int{
		healthpb.Health_Check_FullMethodName: 0, healthpb.Health_List_FullMethodName: 0, healthpb.Health_Watch_FullMethodName: 1,
		tsopb.Oracle_Status_FullMethodName:     0,
		tsopb.Oracle_Timestamps_FullMethodName: 1, "/unknown": 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimits(nil, nil)
			ctx, cancel := context.WithCancel(conns{l}.TagConn(t.Context(), &stats.ConnTagInfo{}))
			if _, err := l.admit(ctx, &tap.Info{FullMethodName: method}); err != nil || l.present() != (counts{requests: 1, long: long}) {
				t.Errorf("%s: %v, %+v", method, err, l.present())
			}
			cancel()
			synctest.Wait()
			if l.present() != (counts{}) {
				t.Errorf("%s: after its end %+v", method, l.present())
			}
		})
	}
}

// oneConn is a listener with one connection, and then none.
type oneConn struct {
	net.Listener
	conn net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) {
	c := l.conn
	if l.conn = nil; c == nil {
		return nil, net.ErrClosed
	}
	return c, nil
}

// TestRefusalsAreCounted: each refused connection and request is counted once, with the reason, and
// nothing else is.
func TestRefusalsAreCounted(t *testing.T) {
	stream, check := tsopb.Oracle_Timestamps_FullMethodName, healthpb.Health_Check_FullMethodName
	for _, tt := range []struct {
		name   string
		names  []string
		all    counts
		long   int
		method string // "": the connection alone
		want   []string
	}{
		{"a request", nil, counts{connections: 2, requests: 2}, 1, stream, nil},
		{"no certificate", []string{"x"}, counts{connections: 2, requests: 2}, 1, stream, []string{"name"}},
		{"no certificate, health", []string{"x"}, counts{connections: 2, requests: 2}, 1, check, nil},
		{"one connection too many", nil, counts{connections: -1, requests: 2}, 1, stream, []string{"connections"}},
		{"one request too many", nil, counts{connections: 2}, 1, stream, []string{"requests"}},
		{"one stream too many", nil, counts{connections: 2, requests: 2}, 0, stream, []string{"streams"}},
		{"far too many connections", nil, counts{connections: -moreRefused}, 1, "", []string{"connections"}},
		{"a connection", nil, counts{connections: 1}, 1, "", nil},
	} {
		var got []string
		l := newLimits(tt.names, func(reason string) { got = append(got, reason) })
		l.all, l.each.long = tt.all, tt.long
		if tt.method != "" {
			ctx := conns{l}.TagConn(t.Context(), &stats.ConnTagInfo{})
			if _, err := l.admit(ctx, &tap.Info{FullMethodName: tt.method}); (err != nil) != (tt.want != nil) {
				t.Errorf("%s: %v", tt.name, err)
			}
		} else {
			here, there := net.Pipe()
			c, err := listener{&oneConn{conn: here}, l}.Accept()
			if (err != nil) != (tt.want != nil) || err == nil && l.present().connections != 1 {
				t.Errorf("%s: %v, %+v", tt.name, err, l.present())
			}
			if err == nil {
				_ = c.Close()
				_ = c.Close() // counts once
			}
			if _, err := there.Read(make([]byte, 1)); err == nil || l.present().connections != 0 {
				t.Errorf("%s: the connection is open: %v, %+v", tt.name, err, l.present())
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: counted %v, want %v", tt.name, got, tt.want)
		}
	}
}
