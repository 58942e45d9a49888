package tso

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// LiveService is the name under which a server's health check answers SERVING
// as long as the process works, whether it leads or not. The names "" and
// "percolator.tso.v1.Oracle" answer SERVING only while it leads.
const LiveService = "live"

// ServerConfig configures a [Server]. The zero value is ready to use. Row and
// Family have to be the same in every process of a deployment.
type ServerConfig struct {
	// Row is the oracle's row key in the metadata table.
	// Defaults to "oracle".
	Row string

	// Family is the oracle's column family in the metadata table.
	// Defaults to "tso".
	Family string

	// Lease is how long this server may lead without renewing, and so about
	// how long timestamps are missing when it dies. It renews three times as
	// often. At least 50 ms, at most 10 minutes; it should be many times the
	// round trip to Bigtable, garbage collection and scheduling included.
	// Defaults to 3 seconds.
	Lease time.Duration

	// Name is what the row, status and logs call this server.
	// Defaults to the host's name and the process's number.
	Name string

	// Address is where clients reach this server; other servers point clients
	// to it while it leads. It has to be one of the addresses in the clients'
	// configuration.
	// Defaults to the address of the listener.
	Address string

	// Credentials secure the service, see [TLSFiles.Server].
	// Defaults to none: plain text, for loopback.
	Credentials credentials.TransportCredentials

	// Reflection registers gRPC's reflection service.
	// Defaults to false.
	Reflection bool

	// RPCTimeout bounds each request to Bigtable.
	// Defaults to a third of Lease.
	RPCTimeout time.Duration

	// Clock is the clock that timestamps follow. Leases are judged by the
	// monotonic clock; this one can only end them early.
	// Defaults to time.Now.
	Clock func() time.Time

	// MaxStep is how far the clock may be ahead of the highest timestamp
	// before the step is confirmed with Bigtable's own clock.
	// Defaults to 1 minute.
	MaxStep time.Duration

	// GraceTimeout bounds how long Serve, at its end, lets connections finish.
	// By then the lease is released, and every request is refused.
	// Defaults to 200 milliseconds.
	GraceTimeout time.Duration

	// Telemetry receives traces and metrics of the requests.
	// Defaults to the global providers of OpenTelemetry.
	Telemetry []otelgrpc.Option

	// TracerProvider makes the spans of changes of leadership.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics of the server.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// Logger receives changes of leadership and warnings.
	// Defaults to no logging.
	Logger *slog.Logger
}

// A Server hands out timestamps from memory while it leads, and stands by
// otherwise. See the package documentation.
type Server struct {
	cfg    ServerConfig
	log    *slog.Logger
	lead   *leadership
	health *health.Server
	locks  *MemoryLocks
	hints  *MemoryHints
	start  time.Time

	used atomic.Bool

	tsopb.UnimplementedOracleServer
}

// NewServer returns a server over the metadata table. It does no I/O. It fails
// for a configuration that cannot work.
func NewServer(table bigtable.TableAPI, cfg ServerConfig) (*Server, error) {
	cfg.Lease = cmp.Or(cfg.Lease, 3*time.Second)
	if cfg.Lease < minLease || cfg.Lease > maxLease {
		return nil, fmt.Errorf("tso: ServerConfig.Lease is %s; it has to be from %s to %s", cfg.Lease, minLease, maxLease)
	}
	for name, d := range map[string]time.Duration{"RPCTimeout": cfg.RPCTimeout, "MaxStep": cfg.MaxStep, "GraceTimeout": cfg.GraceTimeout} {
		if d < 0 {
			return nil, fmt.Errorf("tso: ServerConfig.%s is %s; it has to be positive, or zero for its default", name, d)
		}
	}
	if cfg.Name == "" {
		host, _ := os.Hostname()
		cfg.Name = fmt.Sprintf("%s/%d", cmp.Or(host, "unknown"), os.Getpid())
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	cfg.RPCTimeout = cmp.Or(cfg.RPCTimeout, cfg.Lease/renewals)
	cfg.GraceTimeout = cmp.Or(cfg.GraceTimeout, 200*time.Millisecond)
	s := &Server{
		cfg:    cfg,
		log:    discard(cfg.Logger),
		health: health.NewServer(),
		locks:  NewMemoryLocks(),
		hints:  NewMemoryHints(),
		start:  time.Now(),
	}
	s.lead = &leadership{
		row:      RowConfig{cfg.Row, cfg.Family, cfg.RPCTimeout}.open(table),
		log:      s.log.With("server", cfg.Name),
		clock:    cfg.Clock,
		maxStep:  Timestamp(cmp.Or(cfg.MaxStep, time.Minute).Microseconds()),
		length:   cfg.Lease,
		interval: cfg.Lease / renewals,
		poll:     max(cfg.Lease/10, minLook),
		name:     cfg.Name,
		onChange: s.changed,
		wake:     make(chan struct{}, 1),
		changed:  make(chan struct{}),
		tel:      newTelemetry(roleServer, cfg.TracerProvider, cfg.MeterProvider, s.log),
	}
	s.changed(false)
	s.health.SetServingStatus(LiveService, healthpb.HealthCheckResponse_SERVING)
	return s, nil
}

// changed keeps the health check, and drops the locks of an earlier term: what
// was taken elsewhere in between is not known here. Subscribers for hints are
// sent away, to the next leader.
func (s *Server) changed(leading bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if leading {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
	s.health.SetServingStatus(tsopb.Oracle_ServiceDesc.ServiceName, status)
	s.locks.forget()
	s.hints.reset(!leading)
}

// Serve stands for election and serves clients on the listener, which it
// closes, until ctx ends. Then it stops answering, releases the lease, so that
// another server can lead at once, and returns nil. It fails when the listener
// does. A Server serves once.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	if s.used.Swap(true) {
		return errors.New("tso: Serve was called before on this Server")
	}
	s.lead.address = cmp.Or(s.cfg.Address, lis.Addr().String())
	opts := []grpc.ServerOption{
		grpc.StatsHandler(otelgrpc.NewServerHandler(s.cfg.Telemetry...)),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// A request is a few bytes; batches of hints are the longest.
		grpc.MaxRecvMsgSize(64 << 10),
	}
	if s.cfg.Credentials != nil {
		opts = append(opts, grpc.Creds(s.cfg.Credentials))
	}
	server := grpc.NewServer(opts...)
	tsopb.RegisterOracleServer(server, s)
	healthpb.RegisterHealthServer(server, s.health)
	if s.cfg.Reflection {
		reflection.Register(server)
	}

	stopObserving, err := s.observe()
	if err != nil {
		s.log.WarnContext(ctx, "tso: making metrics failed", "error", err)
	}
	defer stopObserving()
	electing, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { s.lead.run(electing) })
	failed := make(chan error, 1)
	running.Go(func() { failed <- server.Serve(lis) })
	err = nil
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("tso: serving on %s: %w", lis.Addr(), err)
	}
	stop()
	s.shutDown(server)
	running.Wait()
	return err
}

// shutDown ends the connections. Streams of clients have no end of their own,
// so after the grace time they are cut.
func (s *Server) shutDown(server *grpc.Server) {
	s.health.Shutdown()
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	grace := time.NewTimer(s.cfg.GraceTimeout)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		server.Stop()
		<-done
	}
}
