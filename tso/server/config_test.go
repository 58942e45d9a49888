package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso/internal/tsotest"
	"github.com/percolator-bigtable/percolator/tso/server"
)

func TestServerConfig(t *testing.T) {
	for _, cfg := range []server.Config{{Lease: 50*time.Millisecond - 1}, {Lease: 10*time.Minute + 1}, {RPCTimeout: -1}, {MaxStep: -1}, {GraceTimeout: -1}, {Name: "\xff"}, {Address: "\xff:1"}} {
		if _, err := server.New(nil, cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
	for _, lease := range []time.Duration{50 * time.Millisecond, 10 * time.Minute} {
		if _, err := server.New(nil, server.Config{Lease: lease}); err != nil {
			t.Error(err)
		}
	}
}

// TestServeOnce: a server that has ended does not serve again, with the state of its last term.
func TestServeOnce(t *testing.T) {
	tsotest.Served(t, func(t *testing.T, c *tsotest.Cluster) {
		a := c.Start("a", server.Config{})
		a.Stop()
		if err := <-a.Ended; err != nil {
			t.Error(err)
		}
		lis := bufconn.Listen(1)
		defer lis.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := a.Serve(ctx, lis); err == nil || !strings.Contains(err.Error(), "make another one with server.New") || ctx.Err() != nil {
			t.Errorf("served again: %v", err)
		}
	})
}
