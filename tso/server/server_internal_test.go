package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// TestDefaults: what a server is without a configuration.
func TestDefaults(t *testing.T) {
	s, err := New(nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := s.cfg
	if c.Lease != 3*time.Second || c.RPCTimeout != time.Second || c.MaxStep != time.Minute || c.GraceTimeout != 200*time.Millisecond || c.Clock == nil || c.Name != fmt.Sprintf("%s/%d", host, os.Getpid()) || c.Address != "" {
		t.Errorf("%+v", c)
	}
	if s.lead.row.Key != "oracle" {
		t.Errorf("row %q", s.lead.row.Key)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for _, address := range []string{"", "here:1"} {
		s, err := New(unavailable{}, Config{Name: "a", Address: address, GraceTimeout: 1})
		if err != nil {
			t.Fatal(err)
		}
		want := address
		if want == "" {
			want = closed.Addr().String()
		}
		if err := s.Serve(t.Context(), closed); err == nil || s.cfg.Address != want || s.cfg.Name != "a" {
			t.Errorf("served by %q at %q: %v", s.cfg.Name, s.cfg.Address, err)
		}
	}
}

// TestChangeOfLeadership: the health of the service follows it. The process is live.
func TestChangeOfLeadership(t *testing.T) {
	s, err := New(nil, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for n, leading := range []bool{false, true, true, false} {
		if n > 0 {
			s.changed(leading)
		}
		want := healthpb.HealthCheckResponse_NOT_SERVING
		if leading {
			want = healthpb.HealthCheckResponse_SERVING
		}
		for service, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{
			"": want, tsopb.Oracle_ServiceDesc.ServiceName: want, LiveService: healthpb.HealthCheckResponse_SERVING,
		} {
			if r, err := s.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil || r.Status != want {
				t.Errorf("leading %t: service %q is %v, %v", leading, service, r, err)
			}
		}
	}
}

// brokenConn cannot be closed.
type brokenConn struct{ net.Conn }

func (brokenConn) Close() error { return io.ErrClosedPipe }

func TestCloseOfConnection(t *testing.T) {
	n := 0
	c := &conn{Conn: brokenConn{}, closed: func() { n++ }}
	for range 2 {
		if err := c.Close(); err != io.ErrClosedPipe || n != 1 {
			t.Errorf("%v, counted %d times", err, n)
		}
	}
}

// unavailable is a table that fails.
type unavailable struct{ bigtable.TableAPI }

func (unavailable) ReadRow(context.Context, string, ...bigtable.ReadOption) (bigtable.Row, error) {
	return nil, io.ErrUnexpectedEOF
}
