package tso_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/bttest"
	"go.uber.org/goleak"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
)

func TestMain(m *testing.M) {
	// These tests bring an emulator of their own, with faults in it; the Bigtable
	// client would connect to this one as well.
	_ = os.Unsetenv("BIGTABLE_EMULATOR_HOST")
	if os.Getenv(processEnv) != "" {
		os.Exit(serverProcess())
	}
	goleak.VerifyTestMain(m)
}

// Methods of Bigtable's data API, as the interceptor counts them.
const (
	cam    = "CheckAndMutateRow"
	rmw    = "ReadModifyWriteRow"
	mutate = "MutateRow"
	read   = "ReadRows"
)

const directCell = bigtable.Timestamp(9_000_000_000_000_000_000)

// hook intercepts one RPC: call executes it and may be called any number of
// times. For streams (reads) call returns a nil response.
type hook func(ctx context.Context, method string, call func() (any, error)) (any, error)

// emulator is Bigtable's emulator inside a synctest bubble.
type emulator struct {
	t     *testing.T
	lis   net.Listener
	serve sync.Mutex // one request at a time: the emulator races with itself where reads meet writes
	mu    sync.Mutex
	rpcs  map[string]int
	hook  hook
}

// bubble runs f in a synctest bubble, with an emulator in it. That the bubble
// ends proves that no goroutine is left behind.
func bubble(t *testing.T, f func(t *testing.T, e *emulator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := newEmulator(t)
		e.createTable("percolator", "tso")
		f(t, e)
	})
}

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	return newEmulatorOn(t, bufconn.Listen(1<<20))
}

func newEmulatorOn(t *testing.T, lis net.Listener) *emulator {
	t.Helper()
	e := &emulator{t: t, lis: lis, rpcs: map[string]int{}}
	srv, err := bttest.NewServerWithListener(e.lis,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			return e.intercept(ctx, info.FullMethod, func() (any, error) { return h(ctx, req) })
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			_, err := e.intercept(ss.Context(), info.FullMethod, func() (any, error) { return nil, h(srv, ss) })
			return err
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = e.lis.Close() // first: the server's Stop waits for its accept loop
		srv.Close()
	})
	return e
}

func (e *emulator) intercept(ctx context.Context, full string, serve func() (any, error)) (any, error) {
	call := func() (any, error) {
		e.serve.Lock()
		defer e.serve.Unlock()
		return serve()
	}
	if !strings.HasPrefix(full, "/google.bigtable.v2.Bigtable/") {
		return call()
	}
	method := full[strings.LastIndex(full, "/")+1:]
	e.mu.Lock()
	e.rpcs[method]++
	h := e.hook
	e.mu.Unlock()
	if h == nil {
		return call()
	}
	return h(ctx, method, call)
}

// on installs a hook for the RPCs that arrive from now on; nil removes it.
func (e *emulator) on(h hook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hook = h
}

// counted returns the RPCs since the last call, such as "CheckAndMutateRow:1".
func (e *emulator) counted() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s []string
	for _, m := range []string{read, mutate, cam, rmw} {
		if n := e.rpcs[m]; n > 0 {
			s = append(s, fmt.Sprintf("%s:%d", m, n))
		}
	}
	clear(e.rpcs)
	return strings.Join(s, " ")
}

func (e *emulator) expect(want string) {
	e.t.Helper()
	if got := e.counted(); got != want {
		e.t.Errorf("RPCs: %q, want %q", got, want)
	}
}

func (e *emulator) dial() *grpc.ClientConn {
	e.t.Helper()
	target, opts := e.lis.Addr().String(), []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if pipe, ok := e.lis.(*bufconn.Listener); ok {
		target = "passthrough:bufconn"
		opts = append(opts, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return pipe.Dial() }))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (e *emulator) createTable(table string, families ...string) {
	e.t.Helper()
	ctx := context.Background()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(e.dial()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = admin.Close() })
	if err := admin.CreateTable(ctx, table); err != nil {
		e.t.Fatal(err)
	}
	for _, f := range families {
		if err := admin.CreateColumnFamily(ctx, table, f); err != nil {
			e.t.Fatal(err)
		}
	}
}

// table opens the metadata table with a client of its own, as a process would.
func (e *emulator) table(name string) *bigtable.Table {
	e.t.Helper()
	return e.tableOver(e.dial(), name)
}

func (e *emulator) tableOver(conn *grpc.ClientConn, name string) *bigtable.Table {
	e.t.Helper()
	client, err := bigtable.NewClientWithConfig(context.Background(), "p", "i", bigtable.ClientConfig{
		MetricsProvider:           bigtable.NoopMetricsProvider{},
		DisableSession:            true,
		DisableDynamicChannelPool: true,
		DisableConnectionRecycler: true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = client.Close() })
	return client.Open(name)
}

// direct returns an oracle with a client of its own, closed with the test.
func (e *emulator) direct(cfg tso.DirectConfig) *tso.Direct {
	e.t.Helper()
	d := tso.NewDirect(e.table("percolator"), cfg)
	e.t.Cleanup(func() { _ = d.Close() })
	return d
}

// put replaces the oracle's cell, as an operator or another mode would.
func (e *emulator) put(value []byte) {
	e.t.Helper()
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn("tso", "direct")
	m.Set("tso", "direct", directCell, value)
	e.apply(m)
}

func (e *emulator) putInt(v int64) { e.put(binary.BigEndian.AppendUint64(nil, uint64(v))) }

func (e *emulator) deleteRow() {
	e.t.Helper()
	m := bigtable.NewMutation()
	m.DeleteRow()
	e.apply(m)
}

func (e *emulator) apply(m *bigtable.Mutation) {
	e.t.Helper()
	if err := e.table("percolator").Apply(context.Background(), "oracle", m); err != nil {
		e.t.Fatal(err)
	}
	e.counted()
}

// checkRow verifies what an operator relies on: one cell per column, at the
// fixed timestamp, not below any timestamp that was handed out.
func (e *emulator) checkRow(highest tso.Timestamp) {
	e.t.Helper()
	row, err := e.table("percolator").ReadRow(context.Background(), "oracle")
	if err != nil {
		e.t.Fatal(err)
	}
	e.counted()
	seen := map[string]int{}
	for _, item := range row["tso"] {
		seen[item.Column]++
		if item.Column != "tso:direct" {
			continue
		}
		if item.Timestamp != directCell {
			e.t.Errorf("the oracle's cell moved to %d", item.Timestamp)
		}
		if v := tso.Timestamp(binary.BigEndian.Uint64(item.Value)); v < highest {
			e.t.Errorf("persisted %d, below %d which was handed out", v, highest)
		}
	}
	if seen["tso:direct"] != 1 || seen["tso:clock"] > 1 {
		e.t.Errorf("cells per column: %v", seen)
	}
}

// history checks uniqueness and order in real time of what oracles answer.
type history struct {
	t        *testing.T
	received atomic.Int64 // the largest timestamp received so far
	mu       sync.Mutex
	all      map[tso.Timestamp]bool
}

func newHistory(t *testing.T) *history {
	return &history{t: t, all: map[tso.Timestamp]bool{}}
}

// ask asks o for a timestamp, which has to be larger than all received before.
func (h *history) ask(ctx context.Context, o tso.Oracle) tso.Timestamp {
	before := tso.Timestamp(h.received.Load())
	ts, err := o.Timestamp(ctx)
	if err != nil {
		h.t.Errorf("Timestamp: %v", err)
		return 0
	}
	if ts <= before {
		h.t.Errorf("asked for after %d was received, got %d", before, ts)
	}
	for {
		old := h.received.Load()
		if int64(ts) <= old || h.received.CompareAndSwap(old, int64(ts)) {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all[ts] {
		h.t.Errorf("%d was handed out twice", ts)
	}
	h.all[ts] = true
	return ts
}

func (h *history) highest() tso.Timestamp { return tso.Timestamp(h.received.Load()) }

func (h *history) check(n int) {
	h.t.Helper()
	if len(h.all) != n {
		h.t.Errorf("%d different timestamps, want %d", len(h.all), n)
	}
}

// result is the outcome of a Timestamp call in a goroutine.
type result struct {
	ts  tso.Timestamp
	err error
}

func async(ctx context.Context, o tso.Oracle) <-chan result {
	c := make(chan result, 1)
	go func() {
		ts, err := o.Timestamp(ctx)
		c <- result{ts, err}
	}()
	return c
}

// advance lets virtual time pass.
func advance(d time.Duration) { <-time.After(d) }

func now() tso.Timestamp { return tso.FromTime(time.Now()) }

// directGoroutines counts the goroutines that run code of Direct.
func directGoroutines() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "tso.(*Direct).work(")
}
