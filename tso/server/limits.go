package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
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

// What clients may use of a server. A client is one connection, because a process
// has one. docs/oracle.md has the table.
const (
	// maxConnections bounds the connections whose requests are served. Some more
	// are accepted, to tell their clients why they are refused.
	maxConnections = 4096
	moreRefused    = 256

	// maxStreams bounds the requests of one connection that run at a time. A gRPC
	// client waits with further ones, so this is far more than a client needs.
	// maxLong bounds those that run until the client ends them.
	maxStreams = 256
	maxLong    = 64

	// maxRequests bounds the requests of all connections that run at a time.
	maxRequests = 8192

	// maxHeader and maxWindow bound what a connection may send before the server
	// reads it. A larger window would not make a client faster that waits for each
	// answer.
	maxHeader  = 16 << 10
	maxWindow  = 64 << 10
	maxMessage = 64 << 10

	// maxHandshake bounds how long a connection takes to begin with TLS and HTTP/2.
	maxHandshake = 10 * time.Second
)

// How far clients may move oracle time ahead of the clock, in microseconds, which
// is also a number of timestamps.
const (
	// clockRate is how many timestamps the clock makes in a second.
	clockRate = 1e6

	// clientAhead and clientRate are for one connection: how many timestamps it may
	// take at once, and in each second. So one client that asks without end leaves
	// half of the clock's timestamps to the others.
	clientAhead = 5e6
	clientRate  = clockRate / 2

	// allAhead is for all connections together, at once; then they may take what the
	// clock makes. It is less than the 7.5 seconds for which the lock of a live client
	// is valid at least (three quarters of LockTTL). So clients that ask without end do
	// not make locks of other clients look dead.
	allAhead = 7e6

	// maxPause is how long the server may hold back an answer. It is less than a
	// client's patience with a server that does not answer.
	maxPause = 250 * time.Millisecond
)

// limits counts what clients use, and refuses what is too much.
type limits struct {
	names    []string // that certificates may have; none: any
	each     counts   // the bounds of one connection
	all      counts   // the bounds of all connections; one host has half of them
	refusals func(reason string)

	timestamps *rate.Limiter // of all connections

	mu    sync.Mutex
	used  counts
	hosts map[string]*counts // by IP address, without long; no empty ones
}

// counts are numbers of what is open.
type counts struct{ connections, requests, long int }

func newLimits(names []string, refusals func(reason string)) *limits {
	return &limits{
		names: names, refusals: refusals, hosts: map[string]*counts{},
		timestamps: rate.NewLimiter(clockRate, allAhead),

		each: counts{requests: maxStreams, long: maxLong},
		all:  counts{connections: maxConnections, requests: maxRequests},
	}
}

// A client is one connection. The mutex of limits guards it.
type client struct {
	excess bool   // one connection too many: its requests are refused
	host   string // empty: unknown, so that only the bounds of all apply
	used   counts

	timestamps *rate.Limiter
}

type clientKey struct{}

// clientOf returns the client of a request.
func clientOf(ctx context.Context) *client {
	c, _ := ctx.Value(clientKey{}).(*client)
	return c
}

// conns is a [stats.Handler] that gives each connection its client.
type conns struct{ limits *limits }

// TagConn implements [stats.Handler].
func (h conns) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	l, host := h.limits, hostOf(info.RemoteAddr)
	l.mu.Lock()
	defer l.mu.Unlock()
	excess := l.used.connections > l.all.connections || l.ofHost(host).connections > l.all.connections/2
	return context.WithValue(ctx, clientKey{}, &client{excess: excess, host: host, timestamps: rate.NewLimiter(clientRate, clientAhead)})
}

// hostOf returns the IP address of a connection's other end, or "" if it has none.
func hostOf(addr net.Addr) string {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return ""
}

// ofHost returns what a host uses. l.mu is held.
func (l *limits) ofHost(host string) counts {
	if n := l.hosts[host]; n != nil {
		return *n
	}
	return counts{}
}

// addToHost adds to what a host uses, or takes off. l.mu is held.
func (l *limits) addToHost(host string, n counts) {
	if host == "" {
		return
	}
	used := l.ofHost(host)
	used.connections += n.connections
	used.requests += n.requests
	if used == (counts{}) {
		delete(l.hosts, host)
		return
	}
	l.hosts[host] = &used
}

// HandleConn implements [stats.Handler].
func (conns) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements [stats.Handler].
func (conns) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler].
func (conns) HandleRPC(context.Context, stats.RPCStats) {}

// Requests that end by themselves, and those that need no name.
var (
	short = shortMethods()
	open  = []string{healthpb.Health_Check_FullMethodName, healthpb.Health_Watch_FullMethodName, healthpb.Health_List_FullMethodName}
)

func shortMethods() map[string]bool {
	m := map[string]bool{healthpb.Health_Check_FullMethodName: true, healthpb.Health_List_FullMethodName: true}
	for _, method := range tsopb.Oracle_ServiceDesc.Methods {
		m["/"+tsopb.Oracle_ServiceDesc.ServiceName+"/"+method.MethodName] = true
	}
	return m
}

// admit is a [tap.ServerInHandle]: it counts a request before anything of it is
// read, until its context ends.
func (l *limits) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !slices.Contains(open, info.FullMethodName) {
		if err := l.permit(ctx); err != nil {
			l.refusals("name")
			return ctx, err
		}
	}
	c := clientOf(ctx)
	n := counts{requests: 1}
	if !short[info.FullMethodName] {
		n.long = 1
	}
	if reason, err := l.begin(c, n); err != nil {
		l.refusals(reason)
		return ctx, err
	}
	context.AfterFunc(ctx, func() { l.end(c, n) })
	return ctx, nil
}

func (l *limits) begin(c *client, n counts) (reason string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	refuse := status.Errorf
	switch {
	case c.excess:
		return "connections", refuse(codes.ResourceExhausted, "tso: this server serves %d connections and no more, half of them to one host: close those that are not needed", l.all.connections)
	case l.used.requests+n.requests > l.all.requests, l.ofHost(c.host).requests+n.requests > l.all.requests/2:
		return "requests", refuse(codes.ResourceExhausted, "tso: this server serves %d requests at a time and no more, half of them to one host: try again later", l.all.requests)
	case c.used.long+n.long > l.each.long:
		return "streams", refuse(codes.ResourceExhausted, "tso: this connection has %d streams, which is the limit: use one tso.Client in a process", c.used.long)
	}
	l.used.requests += n.requests
	l.used.long += n.long
	c.used.long += n.long
	l.addToHost(c.host, counts{requests: n.requests})
	return "", nil
}

func (l *limits) end(c *client, n counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used.requests -= n.requests
	l.used.long -= n.long
	c.used.long -= n.long
	l.addToHost(c.host, counts{requests: -n.requests})
}

// present returns what is open.
func (l *limits) present() counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// verifiedNames returns whom the certificate of a request's connection is for; none if it has no
// certificate, or the server verifies none.
func verifiedNames(ctx context.Context) []string {
	var state tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		info, _ := p.AuthInfo.(credentials.TLSInfo)
		state = info.State
	}
	if len(state.VerifiedChains) == 0 {
		return nil
	}
	return certificateNames(state.VerifiedChains[0][0])
}

// permit refuses a client whose certificate has none of the names.
func (l *limits) permit(ctx context.Context) error {
	if len(l.names) == 0 {
		return nil
	}
	names := verifiedNames(ctx)
	if names == nil {
		return status.Error(codes.Unauthenticated, "tso: this server serves only clients with a certificate")
	}
	for _, name := range names {
		if slices.Contains(l.names, name) {
			return nil
		}
	}
	return status.Errorf(codes.PermissionDenied, "tso: this server does not serve certificates of %q", names)
}

// certificateNames returns whom a certificate is for: its DNS names and URIs, or
// its common name if it has neither.
func certificateNames(c *x509.Certificate) []string {
	names := slices.Clone(c.DNSNames)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	if len(names) == 0 {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// pace returns how long the answer to a request for count timestamps has to wait, with oracle time
// this far ahead of the clock. It fails if that is too long.
//
// If oracle time is further ahead than clients can move it, a clock was set back or an operator
// advanced the oracle. Until the clock has caught up, all connections together may take half of what
// it makes, and nothing at once.
func (l *limits) pace(c *client, count, ahead tso.Timestamp) (time.Duration, error) {
	l.mu.Lock() // so that nothing is reserved between a reservation and its end
	defer l.mu.Unlock()
	now := time.Now()
	perSecond, burst := rate.Limit(clockRate), int(allAhead)
	if ahead > allAhead {
		perSecond, burst = clockRate/2, tso.MaxCount
	}
	l.timestamps.SetLimitAt(now, perSecond)
	l.timestamps.SetBurstAt(now, burst)
	own, all := c.timestamps.ReserveN(now, int(count)), l.timestamps.ReserveN(now, int(count))
	wait := max(own.DelayFrom(now), all.DelayFrom(now))
	if wait > maxPause {
		own.CancelAt(now)
		all.CancelAt(now)
		return 0, status.Errorf(codes.ResourceExhausted, "tso: timestamps are taken faster than the clock makes them, and oracle time is %s ahead: wait %s before asking for %d", (time.Duration(ahead) * time.Microsecond).Round(time.Millisecond), wait.Round(time.Millisecond), count)
	}
	return wait, nil
}

// connected counts a connection of a host, or takes one off. It reports false for one that is
// not to be kept.
func (l *limits) connected(host string, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && (l.used.connections >= l.all.connections+moreRefused || l.ofHost(host).connections >= l.all.connections/2+moreRefused/2) {
		return false
	}
	l.used.connections += n
	l.addToHost(host, counts{connections: n})
	return true
}

// listener counts connections, before TLS and HTTP/2 too, and closes those that are
// too many.
type listener struct {
	net.Listener
	limits *limits
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if host := hostOf(c.RemoteAddr()); l.limits.connected(host, 1) {
			return &conn{Conn: c, closed: func() { l.limits.connected(host, -1) }}, nil
		}
		l.limits.refusals("connections")
		_ = c.Close()
	}
}

type conn struct {
	net.Conn
	once   sync.Once
	closed func()
}

func (c *conn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
