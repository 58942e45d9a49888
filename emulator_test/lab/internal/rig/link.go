package rig

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// lateDialer connects over a slow network. What is sent arrives after a delay, in order
// and with any bandwidth; answers come back at once. So each request takes the delay
// once, on a stream or not.
func lateDialer(delay time.Duration) []grpc.DialOption {
	if delay == 0 {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return newLateConn(conn, delay), nil
	})}
}

// A lateConn is a connection that delays what is written.
type lateConn struct {
	net.Conn
	delay   time.Duration
	parcels chan parcel
	closed  chan struct{}
	once    sync.Once
}

// A parcel is what one Write wrote.
type parcel struct {
	due  time.Time
	text []byte
}

func newLateConn(conn net.Conn, delay time.Duration) *lateConn {
	c := &lateConn{Conn: conn, delay: delay, parcels: make(chan parcel, 4096), closed: make(chan struct{})}
	go c.deliver()
	return c
}

func (c *lateConn) Write(b []byte) (int, error) {
	select {
	case c.parcels <- parcel{time.Now().Add(c.delay), append([]byte(nil), b...)}:
		return len(b), nil
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *lateConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

func (c *lateConn) deliver() {
	for {
		select {
		case p := <-c.parcels:
			sleepUntil(p.due)
			if _, err := c.Conn.Write(p.text); err != nil {
				_ = c.Close() // the reader gets an error
				return
			}
		case <-c.closed:
			return
		}
	}
}

// early is how long before its time a parcel is waited for without sleeping. A sleep
// ends late by some tenths of a millisecond, which would count for the library at each
// request.
const early = 700 * time.Microsecond

func sleepUntil(due time.Time) {
	time.Sleep(time.Until(due.Add(-early)))
	for time.Now().Before(due) {
		runtime.Gosched()
	}
}
