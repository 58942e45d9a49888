package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// churning asks like greedy, on a new connection for each request.
func churning(ctx context.Context, c *tsotest.Cluster) {
	for ctx.Err() == nil {
		conn := c.Dial("a", insecure.NewCredentials())
		s, err := tsopb.NewOracleClient(conn).Timestamps(ctx)
		if err == nil {
			_ = s.Send(&tsopb.TimestampsRequest{FormatVersion: tso.FormatVersion, Count: tso.MaxCount})
			_, err = s.Recv()
		}
		_ = conn.Close()
		if err != nil {
			<-time.After(50 * time.Millisecond)
		}
	}
}

// greedy asks for as many timestamps as it can until ctx ends, on one connection.
func greedy(ctx context.Context, o tsopb.OracleClient) (refused int) {
	for ctx.Err() == nil {
		s, err := o.Timestamps(ctx)
		for err == nil {
			if err = s.Send(&tsopb.TimestampsRequest{FormatVersion: tso.FormatVersion, Count: tso.MaxCount}); err == nil {
				_, err = s.Recv()
			}
		}
		if status.Code(err) == codes.ResourceExhausted {
			refused++
			<-time.After(50 * time.Millisecond)
		}
	}
	return refused
}

// TestTimestampsFollowTheClock: clients that ask without end move oracle time ahead
// of the clock by seconds only, other clients are served meanwhile, and the clock
// catches up.
func TestTimestampsFollowTheClock(t *testing.T) {
	long.NotUnderRace(t, "hours of virtual time")
	for _, test := range []struct {
		clients int
		churn   bool
		most    time.Duration
	}{{1, false, 5 * time.Second}, {3, false, 7 * time.Second}, {40, false, 7 * time.Second}, {4, true, 7 * time.Second}} {
		t.Run(fmt.Sprint(test.clients, test.churn), func(t *testing.T) {
			tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
				c.Start("a", server.Config{})
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				var refused atomic.Int64
				var clients sync.WaitGroup
				for range test.clients {
					if test.churn {
						clients.Go(func() { churning(ctx, c) })
						continue
					}
					o := tsopb.NewOracleClient(c.Raw("a"))
					clients.Go(func() { refused.Add(int64(greedy(ctx, o))) })
				}
				modest := c.Client(tso.ClientConfig{}, "a")
				h := tsotest.NewHistory(t)
				ahead := func() time.Duration {
					s := c.Status("a")
					return time.Duration(s.Next-s.Clock) * time.Microsecond
				}
				var most, longest time.Duration
				for ctx.Err() == nil {
					most = max(most, ahead())
					began := time.Now()
					h.Ask(t.Context(), modest)
					longest = max(longest, time.Since(began))
					tsotest.Advance(100 * time.Millisecond)
				}
				t.Logf("%d clients: %s ahead, a modest client waited %s at most, %d refusals", test.clients, most, longest, refused.Load())
				if most > test.most || most < time.Second {
					t.Errorf("oracle time was %s ahead, want up to %s", most, test.most)
				}
				if longest > 500*time.Millisecond {
					t.Errorf("a modest client waited %s", longest)
				}
				clients.Wait()
				tsotest.Advance(test.most)
				if a := ahead(); a > 0 {
					t.Errorf("%s ahead after a rest", a)
				}
				if r, err := c.One("a", tso.FormatVersion, tso.MaxCount); err != nil || r.NotLeader != nil {
					t.Errorf("after a rest: %v, %v", r, err)
				}
			})
		})
	}
}

// TestClockSetBackServesOn: oracle time is an hour ahead because the clock was set
// back. Timestamps stay available, at less than the clock's speed.
func TestClockSetBackServesOn(t *testing.T) {
	long.RacedAtNight(t)
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		var off atomic.Int64
		c.Start("a", server.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(off.Load())) }})
		synctest.Wait()
		h := tsotest.NewHistory(t)
		client := c.Client(tso.ClientConfig{}, "a")
		h.Ask(t.Context(), client)
		off.Store(-int64(time.Hour))
		for range 100 {
			h.Ask(t.Context(), client)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		before := c.Status("a").Next
		var clients sync.WaitGroup
		for range 10 {
			o := tsopb.NewOracleClient(c.Raw("a"))
			clients.Go(func() { greedy(ctx, o) })
		}
		clients.Wait()
		if used := c.Status("a").Next - before; used < 2e6 || used > 12e6 {
			t.Errorf("%d timestamps in 20 seconds, want about half of the clock's 20 million at most", used)
		}
	})
}

// TestStreamsAreBounded: one connection has only so many streams, and says so to
// its client. Other connections do not notice, and a stream that ends makes room.
func TestStreamsAreBounded(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		o := tsopb.NewOracleClient(c.Raw("a"))
		open := func(o tsopb.OracleClient, ctx context.Context) error {
			s, err := o.Timestamps(ctx)
			if err == nil {
				_ = s.Send(&tsopb.TimestampsRequest{FormatVersion: tso.FormatVersion, Count: 1})
				_, err = s.Recv()
			}
			return err
		}
		first, end := context.WithCancel(t.Context())
		defer end()
		n := 0
		err := open(o, first)
		for ; err == nil && n < 1000; n++ {
			err = open(o, t.Context())
		}
		if n != 64 || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "64 streams, which is the limit") {
			t.Errorf("refused after %d streams: %v", n, err)
		}
		if _, err := o.Status(t.Context(), &tsopb.StatusRequest{FormatVersion: tso.FormatVersion}); err != nil {
			t.Errorf("a call on the same connection: %v", err)
		}
		if err := open(tsopb.NewOracleClient(c.Raw("a")), t.Context()); err != nil {
			t.Errorf("another connection: %v", err)
		}
		end()
		synctest.Wait()
		if err := open(o, t.Context()); err != nil {
			t.Errorf("after a stream ended: %v", err)
		}

		// In all. A client that is refused tries until its timeout, and says why.
		a.LimitClients(1000, 65)
		began := time.Now()
		_, err = c.Client(tso.ClientConfig{Timeout: 2 * time.Second}, "a").Timestamp(t.Context())
		if !errors.Is(err, tso.ErrUnavailable) || !strings.Contains(err.Error(), "serves 65 requests at a time") || time.Since(began) > 3*time.Second {
			t.Errorf("beyond the bound of all, after %s: %v", time.Since(began), err)
		}
		a.LimitClients(1000, 1000)
		if _, err = c.Client(tso.ClientConfig{}, "a").Timestamp(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestConnectionsAreBounded: a connection too many is told so, and one far too many
// is closed.
func TestConnectionsAreBounded(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		a.LimitClients(2, 1000)
		conns := []*grpc.ClientConn{c.Raw("a"), c.Raw("a"), c.Raw("a")}
		ask := func(conn *grpc.ClientConn) error {
			_, err := tsopb.NewOracleClient(conn).Status(t.Context(), &tsopb.StatusRequest{FormatVersion: tso.FormatVersion})
			return err
		}
		for i, conn := range conns {
			if err := ask(conn); (i < 2) != (err == nil) || i == 2 && (status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "serves 2 connections")) {
				t.Errorf("connection %d: %v", i+1, err)
			}
		}
		a.LimitClients(-1000, 1000)
		if err := ask(c.Raw("a")); status.Code(err) != codes.Unavailable {
			t.Errorf("a connection far beyond the bound: %v", err)
		}
		a.LimitClients(2, 1000)
		_ = conns[0].Close()
		_ = conns[2].Close()
		synctest.Wait()
		if err := ask(c.Raw("a")); err != nil {
			t.Errorf("after two were closed: %v", err)
		}
	})
}

// TestCallsOfTheService: a client that is served may do all of this, and no more. The
// oracle's mode and its row are changed in Bigtable, which needs access there.
func TestCallsOfTheService(t *testing.T) {
	var got []string
	for _, m := range tsopb.Oracle_ServiceDesc.Methods {
		got = append(got, m.MethodName)
	}
	for _, s := range tsopb.Oracle_ServiceDesc.Streams {
		got = append(got, s.StreamName)
	}
	if want := "Status Timestamps"; strings.Join(got, " ") != want {
		t.Errorf("the service has %s; say in docs/security.md who may call what is new", got)
	}
}

// TestLimitsAreReported: a refusal is counted by limit, and logged once a minute.
func TestLimitsAreReported(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		reader := sdkmetric.NewManualReader()
		var log strings.Builder
		a := c.Start("a", server.Config{
			MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
			Logger:        slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		synctest.Wait()
		o := tsopb.NewOracleClient(c.Raw("a"))
		for range 70 {
			if s, err := o.Timestamps(t.Context()); err == nil {
				_ = s.Send(&tsopb.TimestampsRequest{FormatVersion: tso.FormatVersion, Count: 1})
				_, _ = s.Recv()
			}
		}
		var found metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &found); err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, scope := range found.ScopeMetrics {
			for _, m := range scope.Metrics {
				switch d := m.Data.(type) {
				case metricdata.Sum[int64]:
					for _, p := range d.DataPoints {
						limit, _ := p.Attributes.Value("percolator.oracle.limit")
						got[m.Name+" "+limit.AsString()] = p.Value
					}
				case metricdata.Gauge[int64]:
					got[m.Name] = d.DataPoints[0].Value
				}
			}
		}
		a.Stop()
		<-a.Ended
		if err := reader.Collect(t.Context(), &found); err != nil {
			t.Fatal(err)
		}
		for _, scope := range found.ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name == "percolator.oracle.streams" {
					t.Error("a server that has ended reports its streams")
				}
			}
		}
		if got["percolator.oracle.limited streams"] != 6 || got["percolator.oracle.streams"] != 64 || got["percolator.oracle.connections"] != 1 {
			t.Errorf("metrics: %v", got)
		}
		if n := strings.Count(log.String(), "because of a limit"); n != 1 {
			t.Errorf("%d log lines:\n%s", n, log.String())
		}
	})
}

// counted counts the connections that a listener accepts.
type counted struct {
	net.Listener
	n atomic.Int32
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// TestHealthAlone: a second listener answers health checks, and nothing else. A client may keep its
// connection open with pings.
func TestHealthAlone(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		synctest.Wait()
		lis := bufconn.Listen(1 << 16)
		accepted := &counted{Listener: lis}
		stop := a.ServeHealth(accepted)
		conn, err := grpc.NewClient("passthrough:health", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, PermitWithoutStream: true}),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return lis.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: server.LiveService})
		if err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%v, %v", r, err)
		}
		tsotest.Advance(5 * time.Minute)
		if _, err := tsopb.NewOracleClient(conn).Status(t.Context(), &tsopb.StatusRequest{FormatVersion: tso.FormatVersion}); status.Code(err) != codes.Unimplemented || accepted.n.Load() != 1 {
			t.Errorf("the oracle's service: %v, on connection %d", err, accepted.n.Load())
		}
		stop()
		if _, err := lis.Dial(); err == nil {
			t.Error("the listener is open after stop")
		}
		_ = conn.Close()
	})
}
