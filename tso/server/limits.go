package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
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
	// clientAhead is for one party: all connections with the same certificate's
	// name, or else from the same address. It is less than the 7.5 seconds for which
	// the lock of a live client is valid at least (three quarters of LockTTL). So one
	// party that asks without end does not make locks of other clients look dead.
	clientAhead = 5e6

	// allAhead is for all clients together, the same as MaxStep's default.
	allAhead = 60e6

	// leastShare is the part of what the clock makes that one party may take, at
	// least.
	leastShare = 1.0 / 8

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

	mu      sync.Mutex
	used    counts
	hosts   map[string]*counts // by IP address, without long; no empty ones
	parties map[string]*party  // those that asked for timestamps within partyKept
	swept   time.Time          // parties
	common  fair               // of all parties, while oracle time is far ahead
}

// counts are numbers of what is open.
type counts struct{ connections, requests, long int }

func newLimits(names []string, refusals func(reason string)) *limits {
	return &limits{
		names: names, refusals: refusals, hosts: map[string]*counts{}, parties: map[string]*party{},
		each: counts{requests: maxStreams, long: maxLong},
		all:  counts{connections: maxConnections, requests: maxRequests},
	}
}

// A client is one connection. The mutex of limits guards it.
type client struct {
	excess bool   // one connection too many: its requests are refused
	host   string // empty: unknown, so that only the bounds of all apply
	used   counts

	party *party // nil until the first request for timestamps
}

// A party is who runs clients: it has one certificate, or else one address. However many
// connections it opens, it takes as many timestamps as one, and its connections share them.
type party struct {
	name  string
	at    time.Time // its last request
	conns fair
}

// partyKept is longer than it takes until a party may take clientAhead at once again, so that it
// gains nothing by leaving.
const partyKept = time.Minute

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
	return context.WithValue(ctx, clientKey{}, &client{excess: excess, host: host})
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

// partyOf returns the party of a client. names are those of its certificate. l.mu is held.
func (l *limits) partyOf(c *client, names []string, now time.Time) *party {
	if now.Sub(l.swept) >= partyKept {
		l.swept = now
		maps.DeleteFunc(l.parties, func(_ string, p *party) bool { return now.Sub(p.at) > partyKept })
	}
	if c.party == nil {
		c.party = &party{name: c.host}
		if len(names) > 0 {
			c.party.name = "certificate " + strings.Join(names, " ")
		}
	}
	if name := c.party.name; name != "" { // otherwise nothing is known of it, so each connection is a party
		if known := l.parties[name]; known != nil {
			c.party = known
		}
		l.parties[name] = c.party
	}
	c.party.at = now
	return c.party
}

// pace returns how long the answer to a request for count timestamps has to wait,
// with oracle time this far ahead of the clock. It fails if that is too long. names
// are those of the client's certificate.
//
// A party may take timestamps as fast as the clock makes them, 1 per microsecond,
// and clientAhead more at once. Both become less while oracle time is ahead, down
// to leastShare. From there on, all parties together may take half of what the
// clock makes, whether few or many, new or old, so the clock catches up. Without
// clients that ask without end, only a clock that was set back or an operator who
// advanced the oracle leads there.
func (l *limits) pace(c *client, names []string, count, ahead tso.Timestamp) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	free := min(max(1-float64(ahead)/allAhead, 0), 1)
	share := max(free, leastShare)
	p := l.partyOf(c, names, now)
	if p.conns.pool.at.IsZero() {
		p.conns.pool = credit{clientAhead * free, now}
	}
	grants := [2]grant{p.conns.ask(c, count, now, share, max(clientAhead*free, leastShare*1e6))}
	if free < leastShare {
		grants[1] = l.common.ask(p, count, now, 0.5, tso.MaxCount)
	}
	wait := max(grants[0].wait, grants[1].wait)
	if wait > maxPause {
		return 0, status.Errorf(codes.ResourceExhausted, "tso: timestamps are taken faster than the clock makes them, and oracle time is %s ahead: wait %s before asking for %d", (time.Duration(ahead) * time.Microsecond).Round(time.Millisecond), wait.Round(time.Millisecond), count)
	}
	for _, g := range grants {
		g.take()
	}
	return wait, nil
}

// fair divides a rate among the connections or parties that ask. One alone has all of it. Of
// several, each has an equal part of a half, and the other half goes to the first that ask. So
// clients that ask without end wait for each other, and clients that take little do not wait.
type fair struct {
	pool  credit
	each  map[any]*credit // which asked within askedLately
	swept time.Time
}

// askedLately is for how long one who asked counts.
const askedLately = time.Second

// A grant is what one who asked would get after a wait, from what only it has and from the pool.
type grant struct {
	wait        time.Duration
	mine, pool  *credit
	own, shared float64
}

func (g grant) take() {
	if g.mine != nil {
		g.mine.left -= g.own
		g.pool.left -= g.shared
	}
}

// ask returns how long key has to wait for count. most is how much all together may take at once.
func (f *fair) ask(key any, count tso.Timestamp, now time.Time, perMicrosecond, most float64) grant {
	if now.Sub(f.swept) >= askedLately {
		f.swept = now
		maps.DeleteFunc(f.each, func(_ any, c *credit) bool { return now.Sub(c.at) >= askedLately })
	}
	if f.each == nil {
		f.each = map[any]*credit{}
	}
	mine := f.each[key]
	isNew := mine == nil
	if isNew {
		mine = &credit{at: now}
		f.each[key] = mine
	}
	n := float64(len(f.each))
	if n == 1 {
		mine.at = now
		f.pool.refill(now, perMicrosecond, most)
		return grant{f.pool.wait(count, perMicrosecond), mine, &f.pool, 0, float64(count)}
	}
	half := perMicrosecond / 2
	// Each may save what it gets in a quarter of a second: less than others that ask now have to wait.
	save := max(half/n*float64(maxPause.Microseconds()), 1)
	if isNew {
		mine.left = save
	}
	f.pool.refill(now, half, most/2)
	mine.refill(now, half/n, save)
	alone := mine.wait(count, half/n)
	own := min(max(mine.left, 0), float64(count))
	if both := f.pool.wait(count-tso.Timestamp(own), half); both < alone {
		return grant{both, mine, &f.pool, own, float64(count) - own}
	}
	return grant{alone, mine, &f.pool, float64(count), 0}
}

// credit is how many timestamps may be taken at once.
type credit struct {
	left float64 // negative: what waits already
	at   time.Time
}

// refill adds what the time since the last refill gives, up to most.
func (c *credit) refill(now time.Time, perMicrosecond, most float64) {
	c.left = min(c.left+float64(now.Sub(c.at).Microseconds())*perMicrosecond, most)
	c.at = now
}

// wait is how long it takes until there are count.
func (c *credit) wait(count tso.Timestamp, perMicrosecond float64) time.Duration {
	return time.Duration(max(float64(count)-c.left, 0)/perMicrosecond) * time.Microsecond
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
