// Package server is the served timestamp oracle: any number of servers run, one
// leads by a lease in the oracle's row, and hands out timestamps from memory.
// `percctl tso serve` runs one.
//
//	s, err := server.New(client.Open("percolator"), server.Config{})
//	...
//	err = s.Serve(ctx, listener) // until ctx ends
//
// The leader reserves ranges ahead of use, about three times per lease; requests
// never wait for that. A standby takes over when it has watched the lease
// unchanged for its full length, and starts above the reserved range. The leader
// stops before its lease can end. Package tso has the client, and docs/oracle.md
// the protocol.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

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

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// LiveService is the name under which a server's health check answers SERVING
// as long as the process works, whether it leads or not. The names "" and
// "percolator.tso.v1.Oracle" answer SERVING only while it leads.
const LiveService = "live"

// Config configures a [Server]. The zero value is ready to use. Row and Family
// have to be the same in all processes of a deployment.
type Config struct {
	// Row is the oracle's row key in the metadata table.
	// Defaults to "oracle".
	Row string

	// Family is the oracle's column family in the metadata table.
	// Defaults to "tso".
	Family string

	// Lease is how long this server may lead without renewing, and so about
	// how long no server answers when it dies. It renews three times per
	// lease. At least 50 ms, at most 10 minutes; it should be many times the
	// round trip to Bigtable, garbage collection and scheduling included.
	// Defaults to 3 seconds.
	Lease time.Duration

	// Name is the name of this server in the row, in its status and in logs.
	// Defaults to the host's name and the process's number.
	Name string

	// Address is where clients reach this server; other servers point clients
	// to it while it leads. It has to be one of the addresses in the clients'
	// configuration.
	// Defaults to the address of the listener.
	Address string

	// Credentials secure the service, see [tso.TLSFiles.Server].
	// Defaults to none: plain text, for loopback.
	Credentials credentials.TransportCredentials

	// ClientNames are the DNS names and URIs of the client certificates to serve,
	// or the common names of those that have neither. Credentials have to ask for
	// certificates, see [tso.TLSFiles.CA].
	// Defaults to none: any client that Credentials accept.
	ClientNames []string

	// Reflection registers gRPC's reflection service.
	// Defaults to false.
	Reflection bool

	// RPCTimeout bounds each request to Bigtable.
	// Defaults to a third of Lease.
	RPCTimeout time.Duration

	// Clock is the clock that timestamps follow. The monotonic clock measures
	// leases; this one can only end them early.
	// Defaults to time.Now.
	Clock func() time.Time

	// MaxStep is how far the clock may be ahead of the highest timestamp
	// before the server confirms the step with Bigtable's own clock.
	// Defaults to 1 minute.
	MaxStep time.Duration

	// GraceTimeout bounds how long Serve, at its end, waits for connections to
	// close. By then the lease is released, and every request is refused.
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

// interval is the time between two renewals.
func (c *Config) interval() time.Duration { return c.Lease / renewals }

// poll is the time between two reads of a candidate.
func (c *Config) poll() time.Duration { return max(c.Lease/10, minLook) }

// A Server hands out timestamps from memory while it leads, and stands by
// otherwise. See the package documentation.
type Server struct {
	cfg     *Config
	log     *slog.Logger
	lead    *leadership
	service *service
	health  *health.Server

	used atomic.Bool
}

// New returns a server over the metadata table. It does no I/O. It fails for a
// configuration that cannot work.
func New(table bigtable.TableAPI, cfg Config) (*Server, error) {
	cfg.Lease = cmp.Or(cfg.Lease, 3*time.Second)
	if cfg.Lease < minLease || cfg.Lease > format.MaxLease {
		return nil, fmt.Errorf("tso: server.Config.Lease is %s; it has to be from %s to %s", cfg.Lease, minLease, format.MaxLease)
	}
	if err := errors.Join(
		defaults.Positive("RPCTimeout", &cfg.RPCTimeout, cfg.Lease/renewals),
		defaults.Positive("MaxStep", &cfg.MaxStep, time.Minute),
		defaults.Positive("GraceTimeout", &cfg.GraceTimeout, 200*time.Millisecond),
	); err != nil {
		return nil, fmt.Errorf("tso: server.Config: %w", err)
	}
	if cfg.Name == "" {
		host, _ := os.Hostname()
		cfg.Name = fmt.Sprintf("%s/%d", cmp.Or(strings.ToValidUTF8(host, "?"), "unknown"), os.Getpid())
	}
	for _, s := range []string{cfg.Name, cfg.Address} {
		if !utf8.ValidString(s) {
			return nil, fmt.Errorf("tso: server.Config: the name or address %q is not UTF-8, and cannot be stored", s)
		}
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s := &Server{cfg: &cfg, log: log, health: health.NewServer()}
	tel := telemetry.New(telemetry.RoleServer, cfg.TracerProvider, cfg.MeterProvider, log,
		telemetry.Outcome{Err: tso.ErrNotLeader, Name: "not leader"})
	r := row.Open(table, cfg.Row, cfg.Family, cfg.RPCTimeout)
	leaderLog := log.With("server", cfg.Name)
	alloc := &allocator{
		cfg: &cfg, log: leaderLog, row: r.Key, onChange: s.changed,
		wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	s.lead = &leadership{cfg: &cfg, log: leaderLog, tel: tel, row: r, alloc: alloc}
	s.service = &service{
		alloc: alloc, row: r, tel: tel, log: leaderLog, start: time.Now(),
	}
	s.service.limit = newLimits(cfg.ClientNames, s.service.refused)
	s.changed(false)
	s.health.SetServingStatus(LiveService, healthpb.HealthCheckResponse_SERVING)
	return s, nil
}

// changed updates the health check.
func (s *Server) changed(leading bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if leading {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", status)
	s.health.SetServingStatus(tsopb.Oracle_ServiceDesc.ServiceName, status)
}

// Serve takes part in the election and serves clients on the listener until ctx
// ends. Then it stops answering, releases the lease, so that another server can
// lead at once, closes the listener and returns nil. It fails when the listener
// does. A second call fails.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	if s.used.Swap(true) {
		return errors.New("tso: Serve was called before on this Server; make another one with server.New")
	}
	s.cfg.Address = cmp.Or(s.cfg.Address, lis.Addr().String())
	server := grpc.NewServer(append(s.limited(s.service.limit), grpc.Creds(s.cfg.Credentials), grpc.StatsHandler(otelgrpc.NewServerHandler(s.cfg.Telemetry...)))...)
	tsopb.RegisterOracleServer(server, s.service)
	healthpb.RegisterHealthServer(server, s.health)
	if s.cfg.Reflection {
		reflection.Register(server)
	}

	stopObserving, err := observe(s.cfg.MeterProvider, s.service)
	if err != nil {
		s.log.WarnContext(ctx, "tso: making metrics failed", "error", err)
	}
	defer stopObserving()
	electing, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { s.lead.run(electing) })
	failed := make(chan error, 1)
	running.Go(func() { failed <- server.Serve(listener{lis, s.service.limit}) })
	var failure error
	select {
	case <-ctx.Done():
	case err := <-failed:
		failure = fmt.Errorf("tso: serving on %s: %w", lis.Addr(), err)
	}
	stop()
	s.shutDown(server)
	running.Wait()
	return failure
}

// ServeHealth serves health checks alone on a listener, in plain text, until stop is
// called: for probes that speak no TLS. Serve answers them too.
func (s *Server) ServeHealth(lis net.Listener) (stop func()) {
	l := newLimits(nil, s.service.refused)
	server := grpc.NewServer(s.limited(l)...)
	healthpb.RegisterHealthServer(server, s.health)
	go func() {
		if err := server.Serve(listener{lis, l}); err != nil {
			s.log.Warn("tso: serving health checks failed", "address", lis.Addr(), "error", err)
		}
	}()
	return server.Stop
}

// limited are the options that bound what connections use.
func (s *Server) limited(l *limits) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StatsHandler(conns{l}),
		grpc.InTapHandle(l.admit),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.InitialWindowSize(maxWindow),
		grpc.InitialConnWindowSize(maxWindow),
		grpc.ConnectionTimeout(maxHandshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ReadBufferSize(4 << 10), // of each connection
	}
}

// shutDown ends the connections. Streams of clients do not end by themselves, so
// shutDown cuts them after the grace time.
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
		server.Stop() // then GracefulStop returns, too
	}
}
