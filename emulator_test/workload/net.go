package workload

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// The kinds of faults that a Net makes.
const (
	FaultReset    = "reset"     // the connection is reset, and loses all bytes under way
	FaultHalfOpen = "half-open" // nothing arrives in either direction, without an error; at the end a reset
	FaultTrickle  = "trickle"   // the connection passes a few bytes at a time
)

// A Net is the network between one client and its servers. Pass DialOption to
// the client's connection.
type Net struct {
	mu    sync.Mutex
	rnd   *rand.Rand
	conns map[*netConn]bool
	fired map[string]int
	off   bool
}

// NewNet returns a network without faults. The seed makes its choices.
func NewNet(seed uint64) *Net {
	return &Net{rnd: rand.New(rand.NewPCG(seed, 5)), conns: map[*netConn]bool{}, fired: map[string]int{}}
}

// DialOption makes connections go over the network.
func (n *Net) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return n.Wrap(conn), nil
	})
}

// Wrap makes conn go over the network.
func (n *Net) Wrap(conn net.Conn) net.Conn {
	c := &netConn{Conn: conn, net: n}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = true
	return c
}

// Fired returns how many faults of each kind there were since the last call.
func (n *Net) Fired() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	fired := n.fired
	n.fired = map[string]int{}
	return fired
}

// Strike does one kind of fault to every connection, for a time if the kind takes time.
// It reports whether there was a connection.
func (n *Net) Strike(kind string, length time.Duration) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.off || len(n.conns) == 0 {
		return false
	}
	n.fired[kind]++
	for c := range n.conns {
		c.strike(kind, length)
	}
	return true
}

// Run strikes again and again until ctx ends. The average pause between faults is
// pause, and a fault takes up to longest.
func (n *Net) Run(ctx context.Context, pause, longest time.Duration) {
	for {
		n.mu.Lock()
		wait := time.Duration(n.rnd.Int64N(int64(2 * pause)))
		kind := []string{FaultReset, FaultHalfOpen, FaultTrickle}[n.rnd.IntN(3)]
		length := time.Duration(n.rnd.Int64N(int64(longest)) + 1)
		n.mu.Unlock()
		if !rest(ctx, wait) {
			return
		}
		n.Strike(kind, length)
	}
}

// rest waits. It returns false if ctx ends first.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Heal ends the faults.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off = true
	for c := range n.conns {
		c.heal()
	}
}

// A netConn is a connection over a Net.
type netConn struct {
	net.Conn
	net *Net

	mu    sync.Mutex
	kind  string
	timer *time.Timer
}

const (
	// trickle is how many bytes pass at a time, and tricklePause how long this takes.
	trickle      = 64
	tricklePause = time.Millisecond
)

func (c *netConn) strike(kind string, length time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kind != "" {
		return
	}
	c.kind = kind
	switch kind {
	case FaultReset:
		go c.reset()
	default:
		c.timer = time.AfterFunc(length, c.heal)
	}
}

// heal ends a fault. It does not bring back what a half-open connection has lost.
func (c *netConn) heal() {
	c.mu.Lock()
	kind := c.kind
	if kind == FaultTrickle {
		c.kind = ""
	}
	c.mu.Unlock()
	if kind == FaultHalfOpen {
		go c.reset()
	}
}

func (c *netConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset instead of an orderly end
	}
	_ = c.Close()
}

func (c *netConn) now() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind
}

func (c *netConn) Read(b []byte) (int, error) {
	for {
		if c.now() == FaultTrickle && len(b) > trickle {
			b = b[:trickle]
			<-time.After(tricklePause)
		}
		n, err := c.Conn.Read(b)
		if err != nil || c.now() != FaultHalfOpen {
			return n, err
		}
	}
}

func (c *netConn) Write(b []byte) (int, error) {
	sent := 0
	for {
		part := b[sent:]
		switch c.now() {
		case FaultHalfOpen:
			return len(b), nil
		case FaultTrickle:
			part = part[:min(len(part), trickle)]
			<-time.After(tricklePause)
		}
		n, err := c.Conn.Write(part)
		sent += n
		if err != nil || sent == len(b) {
			return sent, err
		}
	}
}

func (c *netConn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}
