// Package tsotest lets tests run timestamp oracles over Bigtable's emulator,
// inside a synctest bubble: with faults at any request, with a cluster of
// servers, and with checks of the order of timestamps.
package tsotest

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
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
)

// These tests bring an emulator of their own, with faults in it; the Bigtable client would connect to
// that of the environment as well, and a bubble would wait for it.
func init() { _ = os.Unsetenv("BIGTABLE_EMULATOR_HOST") }

// Methods of Bigtable's data API, as the interceptor counts them.
const (
	CheckAndMutate  = "CheckAndMutateRow"
	ReadModifyWrite = "ReadModifyWriteRow"
	MutateRow       = "MutateRow"
	ReadRows        = "ReadRows"
)

// DirectCell is the cell timestamp of column "direct".
const DirectCell = bigtable.Timestamp(9_000_000_000_000_000_000)

// Hook intercepts one RPC: call executes it and may be called any number of
// times. For streams (reads) call returns a nil response.
type Hook func(ctx context.Context, method string, call func() (any, error)) (any, error)

// Emulator is Bigtable's emulator inside a synctest bubble.
type Emulator struct {
	T     *testing.T
	Lis   net.Listener
	serve sync.Mutex // one request at a time: the emulator races with itself where reads meet writes
	mu    sync.Mutex
	rpcs  map[string]int
	hook  Hook
	once  sync.Once
	table *bigtable.Table // own
}

// Bubble runs f in a synctest bubble, with an emulator in it. That the bubble
// ends proves that no goroutine is left behind.
func Bubble(t *testing.T, f func(t *testing.T, e *Emulator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := NewEmulator(t)
		e.CreateTable("percolator", "tso")
		f(t, e)
	})
}

// NewEmulator starts an emulator that listens on a pipe.
func NewEmulator(t *testing.T) *Emulator {
	t.Helper()
	return NewEmulatorOn(t, bufconn.Listen(1<<20))
}

// NewEmulatorOn starts an emulator that listens on lis.
func NewEmulatorOn(t *testing.T, lis net.Listener) *Emulator {
	t.Helper()
	e := &Emulator{T: t, Lis: lis, rpcs: map[string]int{}}
	srv, err := bttest.NewServerWithListener(e.Lis,
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
		_ = e.Lis.Close() // first: the server's Stop waits for its accept loop
		srv.Close()
	})
	return e
}

func (e *Emulator) intercept(ctx context.Context, full string, serve func() (any, error)) (any, error) {
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

// On installs a hook for the RPCs that arrive from now on; nil removes it.
func (e *Emulator) On(h Hook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hook = h
}

// Counted returns the RPCs since the last call, such as "CheckAndMutateRow:1".
func (e *Emulator) Counted() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s []string
	for _, m := range []string{ReadRows, MutateRow, CheckAndMutate, ReadModifyWrite} {
		if n := e.rpcs[m]; n > 0 {
			s = append(s, fmt.Sprintf("%s:%d", m, n))
		}
	}
	clear(e.rpcs)
	return strings.Join(s, " ")
}

// Expect compares Counted.
func (e *Emulator) Expect(want string) {
	e.T.Helper()
	if got := e.Counted(); got != want {
		e.T.Errorf("RPCs: %q, want %q", got, want)
	}
}

// Dial connects to the emulator, until the test ends.
func (e *Emulator) Dial() *grpc.ClientConn {
	e.T.Helper()
	target, opts := e.Lis.Addr().String(), []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if pipe, ok := e.Lis.(*bufconn.Listener); ok {
		target = "passthrough:bufconn"
		opts = append(opts, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return pipe.Dial() }))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// CreateTable makes a table.
func (e *Emulator) CreateTable(table string, families ...string) {
	e.T.Helper()
	ctx := context.Background()
	admin, err := bigtable.NewAdminClient(ctx, "p", "i", option.WithGRPCConn(e.Dial()))
	if err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { _ = admin.Close() })
	if err := admin.CreateTable(ctx, table); err != nil {
		e.T.Fatal(err)
	}
	for _, f := range families {
		if err := admin.CreateColumnFamily(ctx, table, f); err != nil {
			e.T.Fatal(err)
		}
	}
}

// Table opens the metadata table with a client of its own, as a process would.
func (e *Emulator) Table(name string) *bigtable.Table {
	e.T.Helper()
	return e.TableOver(e.Dial(), name)
}

// own returns the metadata table with the client of the emulator's own methods.
func (e *Emulator) own() *bigtable.Table {
	e.T.Helper()
	e.once.Do(func() { e.table = e.Table("percolator") })
	return e.table
}

// TableOver opens a table over a connection.
func (e *Emulator) TableOver(conn *grpc.ClientConn, name string) *bigtable.Table {
	e.T.Helper()
	client, err := bigtable.NewClientWithConfig(context.Background(), "p", "i", bigtable.ClientConfig{
		MetricsProvider:           bigtable.NoopMetricsProvider{},
		DisableSession:            true,
		DisableDynamicChannelPool: true,
		DisableConnectionRecycler: true,
	}, option.WithGRPCConn(conn))
	if err != nil {
		e.T.Fatal(err)
	}
	e.T.Cleanup(func() { _ = client.Close() })
	return client.Open(name)
}

// Direct returns an oracle with a client of its own, closed with the test.
func (e *Emulator) Direct(cfg tso.DirectConfig) *tso.Direct {
	e.T.Helper()
	d := tso.NewDirect(e.Table("percolator"), cfg)
	e.T.Cleanup(func() { _ = d.Close() })
	return d
}

// Put replaces the oracle's cell, as an operator or another mode would.
func (e *Emulator) Put(value []byte) {
	e.T.Helper()
	m := bigtable.NewMutation()
	m.DeleteCellsInColumn("tso", "direct")
	m.Set("tso", "direct", DirectCell, value)
	e.Apply(m)
}

// PutInt is Put of a value of direct mode.
func (e *Emulator) PutInt(v int64) { e.Put(binary.BigEndian.AppendUint64(nil, uint64(v))) }

// DeleteRow deletes the oracle's row.
func (e *Emulator) DeleteRow() {
	e.T.Helper()
	m := bigtable.NewMutation()
	m.DeleteRow()
	e.Apply(m)
}

// Apply changes the oracle's row.
func (e *Emulator) Apply(m *bigtable.Mutation) {
	e.T.Helper()
	if err := e.own().Apply(context.Background(), "oracle", m); err != nil {
		e.T.Fatal(err)
	}
	e.Counted()
}

// SetMode changes the mode of the oracle's row.
func (e *Emulator) SetMode(m tso.Mode) {
	e.T.Helper()
	if _, err := tso.SetMode(context.Background(), e.own(), tso.RowConfig{}, m); err != nil {
		e.T.Fatal(err)
	}
	e.Counted()
}

// State reads the oracle's row.
func (e *Emulator) State() tso.RowState {
	e.T.Helper()
	s, err := tso.ReadRow(context.Background(), e.own(), tso.RowConfig{})
	if err != nil {
		e.T.Fatal(err)
	}
	return s
}

// CheckRow verifies what an operator relies on: one cell per column, at the
// fixed timestamp, not below any timestamp that was handed out.
func (e *Emulator) CheckRow(highest tso.Timestamp) {
	e.T.Helper()
	row, err := e.Table("percolator").ReadRow(context.Background(), "oracle")
	if err != nil {
		e.T.Fatal(err)
	}
	e.Counted()
	seen := map[string]int{}
	for _, item := range row["tso"] {
		seen[item.Column]++
		if item.Column != "tso:direct" {
			continue
		}
		if item.Timestamp != DirectCell {
			e.T.Errorf("the oracle's cell moved to %d", item.Timestamp)
		}
		if v := tso.Timestamp(binary.BigEndian.Uint64(item.Value)); v < highest {
			e.T.Errorf("persisted %d, below %d which was handed out", v, highest)
		}
	}
	if seen["tso:direct"] != 1 || seen["tso:clock"] > 1 {
		e.T.Errorf("cells per column: %v", seen)
	}
}

// History checks uniqueness and order in real time of what oracles answer.
type History struct {
	t        *testing.T
	Received atomic.Int64 // the largest timestamp received so far
	mu       sync.Mutex
	all      map[tso.Timestamp]bool
}

// NewHistory returns an empty history.
func NewHistory(t *testing.T) *History {
	return &History{t: t, all: map[tso.Timestamp]bool{}}
}

// Ask asks o for a timestamp, which has to be larger than all received before.
func (h *History) Ask(ctx context.Context, o tso.Oracle) tso.Timestamp {
	before := tso.Timestamp(h.Received.Load())
	ts, err := o.Timestamp(ctx)
	if err != nil {
		h.t.Errorf("Timestamp: %v", err)
		return 0
	}
	if ts <= before {
		h.t.Errorf("asked for after %d was received, got %d", before, ts)
	}
	for {
		old := h.Received.Load()
		if int64(ts) <= old || h.Received.CompareAndSwap(old, int64(ts)) {
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

// Highest is the largest timestamp received.
func (h *History) Highest() tso.Timestamp { return tso.Timestamp(h.Received.Load()) }

// Check verifies that there are n different timestamps.
func (h *History) Check(n int) {
	h.t.Helper()
	if len(h.all) != n {
		h.t.Errorf("%d different timestamps, want %d", len(h.all), n)
	}
}

// Result is the outcome of a Timestamp call in a goroutine.
type Result struct {
	TS  tso.Timestamp
	Err error
}

// Async asks o for a timestamp in a goroutine.
func Async(ctx context.Context, o tso.Oracle) <-chan Result {
	c := make(chan Result, 1)
	go func() {
		ts, err := o.Timestamp(ctx)
		c <- Result{ts, err}
	}()
	return c
}

// Advance lets virtual time pass.
func Advance(d time.Duration) { <-time.After(d) }

// Now is the time as a timestamp.
func Now() tso.Timestamp { return tso.FromTime(time.Now()) }

// DirectGoroutines counts the goroutines that run code of Direct.
func DirectGoroutines() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "tso.(*Direct).work(")
}

// Gate holds RPCs of one method back, before or after they are applied, until
// it is opened. It proves that it fired.
type Gate struct {
	method string
	after  bool
	Held   chan struct{} // one element per RPC that arrived
	Open   chan struct{}
}

// NewGate returns a closed gate.
func NewGate(method string, after bool) *Gate {
	return &Gate{method: method, after: after, Held: make(chan struct{}, 1000), Open: make(chan struct{})}
}

// Hook is the [Hook] to install.
func (g *Gate) Hook(ctx context.Context, method string, call func() (any, error)) (any, error) {
	if method != g.method {
		return call()
	}
	var res any
	var err error
	if g.after {
		res, err = call()
	}
	g.Held <- struct{}{}
	select {
	case <-g.Open:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if !g.after {
		res, err = call()
	}
	return res, err
}

// Faults of one RPC, as a network makes them.
var Faults = []struct {
	Name string
	Do   func(call func() (any, error)) (any, error)
}{
	{"dropped before it is applied", func(func() (any, error)) (any, error) {
		return nil, status.Error(codes.Unavailable, "dropped before")
	}},
	{"answer dropped after it was applied", func(call func() (any, error)) (any, error) {
		if _, err := call(); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.Unavailable, "dropped after")
	}},
	{"applied, then aborted", func(call func() (any, error)) (any, error) {
		_, _ = call()
		return nil, status.Error(codes.Aborted, "aborted")
	}},
	{"duplicated, last answer", func(call func() (any, error)) (any, error) {
		_, _ = call()
		return call()
	}},
	{"duplicated, first answer", func(call func() (any, error)) (any, error) {
		res, err := call()
		_, _ = call()
		return res, err
	}},
}
