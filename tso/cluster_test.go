package tso_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const lease = 3 * time.Second

// node is a server in a bubble, reached over a pipe.
type node struct {
	*tso.Server
	name  string
	lis   *bufconn.Listener
	stop  context.CancelFunc
	ended chan error
	cut   atomic.Bool // its requests to Bigtable fail
}

// cluster is servers over one emulator, by name.
type cluster struct {
	e     *emulator
	mu    sync.Mutex
	nodes map[string]*node
}

func newCluster(e *emulator) *cluster { return &cluster{e: e, nodes: map[string]*node{}} }

// served is a bubble with a row in served mode.
func served(t *testing.T, f func(t *testing.T, c *cluster)) {
	t.Helper()
	bubble(t, func(t *testing.T, e *emulator) {
		e.setMode(tso.ModeServed)
		f(t, newCluster(e))
	})
}

func (e *emulator) setMode(m tso.Mode) {
	e.t.Helper()
	if _, err := tso.SetMode(context.Background(), e.table("percolator"), tso.RowConfig{}, m); err != nil {
		e.t.Fatal(err)
	}
	e.counted()
}

func (e *emulator) state() tso.RowState {
	e.t.Helper()
	s, err := tso.ReadRow(context.Background(), e.table("percolator"), tso.RowConfig{})
	if err != nil {
		e.t.Fatal(err)
	}
	return s
}

// cuttable fails requests while it is cut.
type cuttable struct {
	bigtable.TableAPI
	cut *atomic.Bool
}

var errCut = status.Error(codes.Unavailable, "cut off")

func (c cuttable) ReadRow(ctx context.Context, row string, opts ...bigtable.ReadOption) (bigtable.Row, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.TableAPI.ReadRow(ctx, row, opts...)
}

func (c cuttable) Apply(ctx context.Context, row string, m *bigtable.Mutation, opts ...bigtable.ApplyOption) error {
	if c.cut.Load() {
		return errCut
	}
	return c.TableAPI.Apply(ctx, row, m, opts...)
}

// start runs a server.
func (c *cluster) start(name string, cfg tso.ServerConfig) *node {
	c.e.t.Helper()
	n := &node{name: name, lis: bufconn.Listen(1 << 20), ended: make(chan error, 1)}
	cfg.Name, cfg.Address = name, "passthrough:"+name
	if cfg.Lease == 0 {
		cfg.Lease = lease
	}
	var err error
	if n.Server, err = tso.NewServer(cuttable{c.e.table("percolator"), &n.cut}, cfg); err != nil {
		c.e.t.Fatal(err)
	}
	c.mu.Lock()
	c.nodes[name] = n
	c.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.ended <- n.Serve(ctx, n.lis)
	}()
	c.e.t.Cleanup(func() {
		stop()
		<-done
	})
	return n
}

func (c *cluster) dialer(_ context.Context, name string) (net.Conn, error) {
	c.mu.Lock()
	n := c.nodes[name]
	c.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("no server %s", name)
	}
	return n.lis.Dial()
}

func (c *cluster) client(cfg tso.ClientConfig, names ...string) *tso.Client {
	c.e.t.Helper()
	for _, n := range names {
		cfg.Addresses = append(cfg.Addresses, "passthrough:"+n)
	}
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(c.dialer))
	client, err := tso.NewClient(cfg)
	if err != nil {
		c.e.t.Fatal(err)
	}
	c.e.t.Cleanup(func() { _ = client.Close() })
	return client
}

// raw is a connection below the client.
func (c *cluster) raw(name string) *grpc.ClientConn {
	c.e.t.Helper()
	conn, err := grpc.NewClient("passthrough:"+name, grpc.WithContextDialer(c.dialer), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		c.e.t.Fatal(err)
	}
	c.e.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// one asks a server for count timestamps on a stream of its own.
func (c *cluster) one(name string, version, count uint32) (*tsopb.TimestampsResponse, error) {
	c.e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := tsopb.NewOracleClient(c.raw(name)).Timestamps(ctx)
	if err != nil {
		return nil, err
	}
	_ = s.Send(&tsopb.TimestampsRequest{FormatVersion: version, Count: count})
	return s.Recv()
}

func (c *cluster) healthy(name, service string) bool {
	c.e.t.Helper()
	r, err := healthpb.NewHealthClient(c.raw(name)).Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		c.e.t.Fatal(err)
	}
	return r.Status == healthpb.HealthCheckResponse_SERVING
}

func (c *cluster) status(name string) *tsopb.StatusResponse {
	c.e.t.Helper()
	r, err := tsopb.NewOracleClient(c.raw(name)).Status(context.Background(), &tsopb.StatusRequest{FormatVersion: tso.FormatVersion})
	if err != nil {
		c.e.t.Fatal(err)
	}
	return r
}

// leader returns the one server that leads, or "".
func (c *cluster) leader() string {
	c.e.t.Helper()
	found := ""
	for name := range c.nodes {
		if c.nodes[name].lis != nil && c.status(name).Leading {
			if found != "" {
				c.e.t.Errorf("both %s and %s lead", found, name)
			}
			found = name
		}
	}
	return found
}
