package tsotest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/server"
)

// Lease is the length of leases, unless a test sets another.
const Lease = 3 * time.Second

// Node is a server in a bubble, reached over a pipe.
type Node struct {
	*server.Server
	Name  string
	lis   *bufconn.Listener
	Stop  context.CancelFunc
	Ended chan error
	Cut   atomic.Bool // its requests to Bigtable fail
}

// CutOff makes the server's requests to Bigtable fail. Those under way have ended when it returns.
func (s *Node) CutOff() {
	s.Cut.Store(true)
	synctest.Wait()
}

// Cluster is servers over one emulator, by name.
type Cluster struct {
	E     *Emulator
	mu    sync.Mutex
	nodes map[string]*Node
}

// NewCluster returns a cluster without servers.
func NewCluster(e *Emulator) *Cluster { return &Cluster{E: e, nodes: map[string]*Node{}} }

// Served is a bubble with a row in served mode.
func Served(t *testing.T, f func(t *testing.T, c *Cluster)) {
	t.Helper()
	Bubble(t, func(t *testing.T, e *Emulator) {
		e.SetMode(tso.ModeServed)
		f(t, NewCluster(e))
	})
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

// Start runs a server.
func (c *Cluster) Start(name string, cfg server.Config) *Node {
	c.E.T.Helper()
	n := &Node{Name: name, lis: bufconn.Listen(1 << 20), Ended: make(chan error, 1)}
	cfg.Name, cfg.Address = name, "passthrough:"+name
	if cfg.Lease == 0 {
		cfg.Lease = Lease
	}
	var err error
	if n.Server, err = server.New(cuttable{c.E.Table("percolator"), &n.Cut}, cfg); err != nil {
		c.E.T.Fatal(err)
	}
	c.mu.Lock()
	c.nodes[name] = n
	c.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	n.Stop = stop
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Ended <- n.Serve(ctx, n.lis)
	}()
	c.E.T.Cleanup(func() {
		stop()
		<-done
	})
	return n
}

func (c *Cluster) dialer(_ context.Context, name string) (net.Conn, error) {
	c.mu.Lock()
	n := c.nodes[name]
	c.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("no server %s", name)
	}
	return n.lis.Dial()
}

// Client returns a client of the named servers, closed with the test.
func (c *Cluster) Client(cfg tso.ClientConfig, names ...string) *tso.Client {
	c.E.T.Helper()
	for _, n := range names {
		cfg.Addresses = append(cfg.Addresses, "passthrough:"+n)
	}
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(c.dialer))
	client, err := tso.NewClient(cfg)
	if err != nil {
		c.E.T.Fatal(err)
	}
	c.E.T.Cleanup(func() { _ = client.Close() })
	return client
}

// Raw is a connection below the client, in plain text.
func (c *Cluster) Raw(name string) *grpc.ClientConn {
	c.E.T.Helper()
	return c.Dial(name, insecure.NewCredentials())
}

// Dial is a connection below the client.
func (c *Cluster) Dial(name string, creds credentials.TransportCredentials) *grpc.ClientConn {
	c.E.T.Helper()
	conn, err := grpc.NewClient("passthrough:"+name, grpc.WithContextDialer(c.dialer), grpc.WithTransportCredentials(creds))
	if err != nil {
		c.E.T.Fatal(err)
	}
	c.E.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// One asks a server for count timestamps on a stream of its own.
func (c *Cluster) One(name string, version, count uint32) (*tsopb.TimestampsResponse, error) {
	c.E.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := tsopb.NewOracleClient(c.Raw(name)).Timestamps(ctx)
	if err != nil {
		return nil, err
	}
	_ = s.Send(&tsopb.TimestampsRequest{FormatVersion: version, Count: count})
	return s.Recv()
}

// Healthy asks a server for its health.
func (c *Cluster) Healthy(name, service string) bool {
	c.E.T.Helper()
	r, err := healthpb.NewHealthClient(c.Raw(name)).Check(context.Background(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		c.E.T.Fatal(err)
	}
	return r.Status == healthpb.HealthCheckResponse_SERVING
}

// Status asks a server for its status.
func (c *Cluster) Status(name string) *tsopb.StatusResponse {
	c.E.T.Helper()
	r, err := tsopb.NewOracleClient(c.Raw(name)).Status(context.Background(), &tsopb.StatusRequest{FormatVersion: tso.FormatVersion})
	if err != nil {
		c.E.T.Fatal(err)
	}
	return r
}

// Leader returns the one server that leads, or "".
func (c *Cluster) Leader() string {
	c.E.T.Helper()
	found := ""
	for name := range c.nodes {
		if c.nodes[name].lis != nil && c.Status(name).Leading {
			if found != "" {
				c.E.T.Errorf("both %s and %s lead", found, name)
			}
			found = name
		}
	}
	return found
}

// Register runs a gRPC server in place of one of the oracle.
func (c *Cluster) Register(name string, register func(*grpc.Server)) {
	c.E.T.Helper()
	n := &Node{lis: bufconn.Listen(1 << 16)}
	c.mu.Lock()
	c.nodes[name] = n
	c.mu.Unlock()
	s := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(n.lis) }()
	c.E.T.Cleanup(func() {
		s.Stop()
		<-done
	})
}

// ServeAs serves an oracle that is none of ours under a name.
func (c *Cluster) ServeAs(name string, oracle tsopb.OracleServer) {
	c.E.T.Helper()
	c.Register(name, func(s *grpc.Server) { tsopb.RegisterOracleServer(s, oracle) })
}

// Rush takes so many timestamps that oracle time is ahead of the clock, and
// returns the last one.
func (c *Cluster) Rush(name string, requests int) (high tso.Timestamp) {
	c.E.T.Helper()
	for range requests {
		r, err := c.One(name, tso.FormatVersion, tso.MaxCount)
		if err != nil || r.NotLeader != nil {
			c.E.T.Fatal(r, err)
		}
		high = tso.Timestamp(r.First) + tso.MaxCount - 1
		synctest.Wait()
	}
	return high
}

// Holding holds back one answer of a server.
type Holding struct {
	Held, Resume chan struct{}
	pass         atomic.Int32 // how many answers pass before
}

// Hold puts a relay in front of a server: clients that connect from here on, or
// again, reach the server through it. The relay passes requests for timestamps
// only. It passes some answers, and holds back the next one.
func (c *Cluster) Hold(n *Node, pass int32) *Holding {
	c.E.T.Helper()
	conn, err := grpc.NewClient("passthrough:"+n.Name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return n.lis.Dial() }))
	if err != nil {
		c.E.T.Fatal(err)
	}
	c.E.T.Cleanup(func() { _ = conn.Close() })
	h := &Holding{Held: make(chan struct{}), Resume: make(chan struct{})}
	h.pass.Store(pass)
	c.ServeAs(n.Name, &relay{to: tsopb.NewOracleClient(conn), holding: h})
	return h
}

// relay passes requests for timestamps on to a server.
type relay struct {
	tsopb.UnimplementedOracleServer
	to      tsopb.OracleClient
	holding *Holding
}

func (r *relay) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	up, err := r.to.Timestamps(stream.Context())
	if err != nil {
		return err
	}
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		_ = up.Send(req) // if it fails, Recv returns the reason
		res, err := up.Recv()
		if err != nil {
			return err
		}
		if r.holding.pass.Add(-1) == -1 {
			close(r.holding.Held)
			<-r.holding.Resume
		}
		if err := stream.Send(res); err != nil {
			return err
		}
	}
}
