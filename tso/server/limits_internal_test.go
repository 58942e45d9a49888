package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"slices"
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

// TestPace: how fast one connection and all together may take timestamps, also while oracle time is far
// ahead of the clock.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := func(l *limits, c *client, count, ahead tso.Timestamp, want time.Duration) {
			t.Helper()
			wait, err := l.pace(c, count, ahead)
			if want < 0 && status.Code(err) != codes.ResourceExhausted || want >= 0 && (err != nil || wait != want) {
				t.Errorf("%d at %d ahead: %v, %v; want %v", count, ahead, wait, err, want)
			}
		}
		open := func(l *limits) *client {
			return clientOf(conns{l}.TagConn(t.Context(), &stats.ConnTagInfo{}))
		}
		const burst, all, most = tso.Timestamp(clientAhead), tso.Timestamp(allAhead), tso.MaxCount
		l := newLimits(nil, nil)
		a, b := open(l), open(l)
		pace(l, a, burst, 0, 0) // all at once
		pace(l, a, most, 0, 200*time.Millisecond)
		pace(l, a, most, 0, -1) // which was not counted
		<-time.After(200 * time.Millisecond)
		pace(l, a, most, 0, 200*time.Millisecond)
		<-time.After(time.Hour)
		pace(l, a, burst, 0, 0) // and not more than that
		pace(l, a, 1000, 0, 2*time.Millisecond)
		pace(l, b, all-burst-1000, 0, 0) // the rest of all
		pace(l, b, most, 0, 100*time.Millisecond)
		pace(l, b, most, 0, 200*time.Millisecond)
		pace(l, b, most, 0, -1)

		// Far ahead, all together may take half of what the clock makes, and nothing at once.
		pace(l, open(l), 1, all+1, -1)
		<-time.After(time.Hour)
		c := open(l)
		pace(l, c, most, all+1, 0)
		pace(l, c, most, all+1, 200*time.Millisecond)
		pace(l, b, most, all+1, -1)
		<-time.After(400 * time.Millisecond)
		pace(l, b, most, all+1, 0)
		<-time.After(time.Second)
		pace(l, b, most, all, 0)
		pace(l, b, most, all, 100*time.Millisecond) // not far ahead any more: it fills up
	})
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
