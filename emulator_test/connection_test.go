package emulator_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/emulator_test/workload"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// connectionTrouble is how long a connection is half-open or slow: longer than the
// ttl of a transfer's locks.
const connectionTrouble = 5 * time.Second

// A strikingConn makes one kind of fault happen at one of its reads or writes.
type strikingConn struct {
	net.Conn
	calls *atomic.Int64 // reads and writes of all connections of the client
	at    int64
	do    func()
}

func (c *strikingConn) count() {
	if c.calls.Add(1) == c.at {
		c.do()
	}
}

func (c *strikingConn) Write(b []byte) (int, error) { c.count(); return c.Conn.Write(b) }

func (c *strikingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.count() // the bytes that were read are returned in any case
	return n, err
}

// strikeAt returns a client whose connections fail in one way at their n-th read or
// write. Counting begins with arm; fired reports whether the fault has happened.
func strikeAt(t *testing.T, env *txntest.Env, cfg txn.Config, kind string, n int64) (c *txn.Client, arm func(), fired func() bool) {
	t.Helper()
	network := workload.NewNet(1)
	var calls atomic.Int64
	var armed atomic.Bool
	struck := atomic.Bool{}
	c = env.NewClient(cfg, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := env.Connect(ctx)
		if err != nil {
			return nil, err
		}
		return &strikingConn{Conn: network.Wrap(conn), calls: &calls, at: n, do: func() {
			if armed.Load() {
				struck.Store(network.Strike(kind, connectionTrouble))
			}
		}}, nil
	}))
	return c, func() { calls.Store(0); armed.Store(true) }, struck.Load
}

// TestConnectionFaults breaks a client's connection at each read and write of a
// transfer: the connection is reset, half-open or slow. The outcome that the client
// reports is what happened.
func TestConnectionFaults(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, kind := range []string{workload.FaultReset, workload.FaultHalfOpen, workload.FaultTrickle} {
		t.Run(kind, func(t *testing.T) {
			points := 0
			for n, more := int64(1), true; more && !t.Failed(); n += int64(shortStride()) {
				t.Run(strconv.Itoa(int(n)), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						tr := newTransfer(t)
						a, arm, fired := strikeAt(t, tr.env, txn.Config{LockTTL: 3 * time.Second, RPCTimeout: time.Second, SyncSecondaries: true}, kind, n)
						for _, table := range []string{"bank", "other"} {
							if err := a.CheckTable(t.Context(), table); err != nil {
								t.Fatal(err)
							}
						}
						tr.a = a
						arm()
						tr.run(time.Minute)
						more = fired()
						tr.verify()
					})
				})
				points++
			}
			if points*shortStride() < 15 {
				t.Errorf("%d points", points)
			}
			t.Logf("%d points", points)
		})
	}
}

// TestScanOverBrokenConnections resets the connection at each read of the answer to a
// scan. The scan has to return every row exactly once.
func TestScanOverBrokenConnections(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, kind := range []string{workload.FaultReset, workload.FaultHalfOpen} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := txntest.New(t, txntest.Embedded())
				env.CreateTable("a", "f")
				const rows = 300
				_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
					for i := range rows {
						tx.Table("a").Set(fmt.Sprintf("row%04d", i), "f", "q", make([]byte, 2000))
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				points := 0
				for n, more := int64(1), true; more; n += 5 {
					c, arm, fired := strikeAt(t, env, txn.Config{RPCTimeout: time.Minute, TokenTTL: -1}, kind, n)
					s, err := c.Snapshot(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if err := c.CheckTable(t.Context(), "a"); err != nil {
						t.Fatal(err)
					}
					arm()
					seen := 0
					for r, err := range s.Table("a").ReadRows(t.Context(), nil) {
						if err != nil {
							t.Fatalf("connection reset at read %d: %v", n, err)
						}
						if want := fmt.Sprintf("row%04d", seen); r.Key() != want {
							t.Fatalf("connection reset at read %d: row %d is %q, want %q", n, seen, r.Key(), want)
						}
						seen++
					}
					if seen != rows {
						t.Errorf("connection reset at read %d: %d rows, want %d", n, seen, rows)
					}
					more = fired()
					points++
				}
				t.Logf("%d points", points)
			})
		})
	}
}

// TestServerPaused stops the server at each request of a transfer, for longer than the
// ttl of its locks. Both the owner and a reader of the locks wait. The reader may roll
// the live owner back; the outcome that the owner reports is what happened.
func TestServerPaused(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	points := 0
	for k, more := 1, true; more && !t.Failed(); k += shortStride() {
		t.Run(strconv.Itoa(k), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTransfer(t)
				paused := txntest.NewFaults(t)
				var calls atomic.Int64
				calls.Store(-1 << 20) // do not count until both clients are connected
				pause := paused.On("pause", func(txntest.Call) bool { return calls.Add(1) >= int64(k) }, txntest.Hold, 0).Optional()
				cfg := txn.Config{LockTTL: 3 * time.Second, SyncSecondaries: true}
				tr.a = tr.env.NewClient(cfg, paused.DialOptions()...)
				reader := tr.env.NewClient(cfg, paused.DialOptions()...)
				for _, c := range []*txn.Client{tr.a, reader} {
					for _, table := range []string{"bank", "other"} {
						if err := c.CheckTable(t.Context(), table); err != nil {
							t.Fatal(err)
						}
					}
				}
				calls.Store(0)
				var reading sync.WaitGroup
				ended := inBackground(func() error { tr.run(time.Minute); return nil })
				select {
				case <-pause.Fired():
					reading.Go(func() {
						if s, err := reader.Snapshot(t.Context()); err != nil {
							t.Error(err)
						} else if _, _, err := s.Table("other").Get(t.Context(), "bob", "bal", "usd"); err != nil {
							t.Error(err)
						}
					})
					advance(7 * time.Second)
					pause.Release()
					<-ended
				case <-ended:
					more = false
				}
				reading.Wait()
				tr.verify()
			})
		})
		points++
	}
	if points*shortStride() < 8 {
		t.Errorf("%d points", points)
	}
	t.Logf("%d points", points)
}
