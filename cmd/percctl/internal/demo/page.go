package demo

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/consolecmd"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/embedded"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/picture"
	"github.com/percolator-bigtable/percolator/cmd/percctl/internal/session"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

const portVariable = "OTEL_EXPORTER_PROMETHEUS_PORT"

// scrapeWorkers has the workers serve their metrics, for the page, unless the environment
// says where metrics go.
func scrapeWorkers() {
	if os.Getenv("OTEL_METRICS_EXPORTER") != "" || os.Getenv("OTEL_SDK_DISABLED") != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		return
	}
	lis, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return
	}
	defer func() { _ = lis.Close() }()
	// Each worker takes a port above this one. They are most likely free, too.
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	_ = os.Setenv(portVariable, port)
	_ = os.Setenv("OTEL_METRICS_EXPORTER", "prometheus")
	_ = os.Setenv("OTEL_TRACES_EXPORTER", "none")
}

// strand leaves locks of dead clients in the deployment, to look at and to resolve.
func (at deployment) strand(ctx context.Context) error {
	dial := func(opts ...grpc.DialOption) (*grpc.ClientConn, error) { return txntest.Dial(at.address, opts...) }
	return embedded.Strand(ctx, dial, at.project, at.instance, time.Minute)
}

// openPage opens the console on the demo's tables.
func (d *demo) openPage(ctx context.Context, at deployment) error {
	cfg := consolecmd.Config{
		Listen: d.opts.listen, Refresh: time.Second, AllowWrites: true,
		Picture: picture.Options{Limit: 10_000, Transactions: 100},
		// The page is what the emulator of a demo is for.
		Limits: picture.Limits{Requests: 60, Bytes: 500_000},
	}
	cfg.Flags = session.Flags{Timeout: setupTimeout}
	cfg.Flags.Connect.Emulator, cfg.Flags.Connect.Project, cfg.Flags.Connect.Instance = at.address, at.project, at.instance
	if port, err := strconv.Atoi(os.Getenv(portVariable)); err == nil && os.Getenv("OTEL_METRICS_EXPORTER") == "prometheus" {
		for i := range d.opts.workers {
			cfg.Metrics = append(cfg.Metrics, fmt.Sprintf("http://localhost:%d/metrics", port+1+i))
		}
	}
	page, err := consolecmd.Open(ctx, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = page.Serve(ctx)
	}()
	d.page, d.at = page, at
	d.closers = append(d.closers, page.Close, func() { <-ended }, cancel)
	d.progress.Event("open %s to watch", page.URL)
	return nil
}
