package server_test

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso/server"
)

func TestServerConfig(t *testing.T) {
	for _, cfg := range []server.Config{{Lease: time.Millisecond}, {Lease: time.Hour}, {RPCTimeout: -1}, {MaxStep: -1}, {GraceTimeout: -1}} {
		if _, err := server.New(nil, cfg); err == nil {
			t.Errorf("accepted %+v", cfg)
		}
	}
}
