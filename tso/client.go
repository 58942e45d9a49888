package tso

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/percolator-bigtable/percolator/tso/defaults"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
)

// ClientConfig configures a [Client].
type ClientConfig struct {
	// Addresses are the servers, as gRPC targets: "host:port" for each. The
	// client finds out which of them leads.
	// Defaults to none: at least one is required.
	Addresses []string

	// Credentials secure the connections, see [TLSFiles.Client].
	// Defaults to none: plain text.
	Credentials credentials.TransportCredentials

	// Timeout bounds how long a request looks for a server that answers, its
	// first attempt included. A caller that asks while another request is under
	// way waits for that one first, so at most twice as long; its context may
	// end before. Timeout should cover a change of leader: one lease and a
	// little more.
	// Defaults to 10 seconds.
	Timeout time.Duration

	// AttemptTimeout is how long one server may take before the client tries
	// another one, within Timeout.
	// Defaults to 1 second.
	AttemptTimeout time.Duration

	// Telemetry receives traces and metrics of the requests.
	// Defaults to the global providers of OpenTelemetry.
	Telemetry []otelgrpc.Option

	// TracerProvider makes the spans of requests for timestamps.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics of the oracle.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// DialOptions are added to the options of each connection.
	// Defaults to none.
	DialOptions []grpc.DialOption

	// Logger receives failovers and warnings.
	// Defaults to no logging.
	Logger *slog.Logger
}

// ClientStats counts what a [Client] did since it was made.
type ClientStats struct {
	Timestamps uint64 // timestamps handed to batches of callers
	Requests   uint64 // requests that were answered
	Failures   uint64 // attempts that failed
	Failovers  uint64 // changes from one server to another
}

// Client is an [Oracle] that asks servers, see package tso/server. Callers that
// ask at the same time share a request, so one Client should serve a whole
// process. It finds the leader among its servers, and finds the next one when
// that stops answering.
//
// It remembers the highest timestamp it received, and fails with
// [*BackwardsError] rather than hand out one at or below it.
type Client struct {
	servers  *servers
	requests *requester // the worker uses it; its counters are for all

	forming atomic.Pointer[callers]
	wake    chan struct{}      // the forming batch is no longer empty
	stop    context.CancelFunc // ends the worker's context
	worker  sync.WaitGroup
}

var _ Oracle = (*Client)(nil)

// NewClient returns a client of the servers. It does no I/O. It fails for a
// configuration that cannot work.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("tso: ClientConfig.Addresses is empty")
	}
	if err := errors.Join(
		defaults.Positive("Timeout", &cfg.Timeout, 10*time.Second),
		defaults.Positive("AttemptTimeout", &cfg.AttemptTimeout, time.Second),
	); err != nil {
		return nil, fmt.Errorf("tso: ClientConfig: %w", err)
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	servers, err := dialServers(cfg)
	if err != nil {
		return nil, err
	}
	c := &Client{
		servers: servers,
		requests: &requester{
			servers: servers, log: log,
			tel: telemetry.New(telemetry.RoleClient, cfg.TracerProvider, cfg.MeterProvider, log, outcomes...),
		},
		wake: make(chan struct{}, 1),
	}
	c.forming.Store(newCallers())
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.worker.Go(func() { c.work(ctx) })
	return c, nil
}

// Timestamp returns a timestamp above every one that any process received
// before this call. It fails when ctx ends; with [*UnavailableError] when no
// server answered within the configured timeout; at once with [ErrClosed] after
// Close, with [*BackwardsError], and with errors that a server cannot recover
// from: [ErrMode], [ErrCorrupt], [ErrNotInitialized], [ErrExhausted],
// [ErrFormat]. A number may be lost, but never comes twice.
func (c *Client) Timestamp(ctx context.Context) (Timestamp, error) {
	if err := ctx.Err(); err != nil {
		return 0, c.requests.expired(err)
	}
	b := c.forming.Load()
	place, ok := b.join()
	for !ok { // the next batch is there already
		b = c.forming.Load()
		place, ok = b.join()
	}
	if place == 0 {
		if sc, ok := telemetry.Origin(ctx); ok {
			b.origin.Store(&sc)
		}
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	ts, ended, err := b.wait(ctx, place)
	if ended {
		return 0, c.requests.expired(ctx.Err())
	}
	return ts, err
}

// Close ends the work in flight, fails all waiting callers with [ErrClosed] and
// closes the connections. A second Close does nothing; the error is always nil.
func (c *Client) Close() error {
	c.stop()
	c.worker.Wait()
	c.servers.hangUp()
	return nil
}

// Stats returns the counters.
func (c *Client) Stats() ClientStats {
	return ClientStats{
		Timestamps: c.requests.timestamps.Load(),
		Requests:   c.requests.answers.Load(),
		Failures:   c.requests.failures.Load(),
		Failovers:  c.requests.failovers.Load(),
	}
}

// work sends batches, one after the other, until ctx ends.
func (c *Client) work(ctx context.Context) {
	var expected int64 // callers of the batch before
	for {
		select {
		case <-c.wake:
		case <-ctx.Done():
			c.forming.Load().finish(ErrClosed) // later callers join this batch
			return
		}
		for ctx.Err() == nil && c.forming.Load().joined.Load() > 0 {
			gather(c.forming.Load().joined.Load, expected)
			// The next batch is there before this one is sealed: a caller that
			// finds the seal finds the other batch.
			b := c.forming.Swap(newCallers())
			n := b.seal()
			expected = n
			b.firsts = b.inline[:0]
			b.finish(c.requests.fill(ctx, b, n))
		}
	}
}
