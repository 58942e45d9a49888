package tso

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
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
	// first attempt included, when its callers' contexts do not end before. Who
	// asks while another request is looking waits for that one first, so at
	// most twice as long. It should cover a change of leader: one lease and a
	// little more.
	// Defaults to 10 seconds.
	Timeout time.Duration

	// AttemptTimeout is how long one server may take before another is tried,
	// within Timeout.
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

	// DialOptions are added to those of each connection.
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

	HintsSent     uint64 // hints that a server took
	HintsDropped  uint64 // hints that were lost before that
	HintsReceived uint64 // hints given to this client's subscribers
	Subscriptions int    // for hints, that stand with a server at present
}

// Client is an [Oracle] that asks servers, see [Server]. Callers who ask at the
// same time share a request, so one Client should serve a whole process. It
// finds the leader among its servers, and finds the next one when that stops
// answering.
//
// It remembers the highest timestamp it received, and fails with
// [*BackwardsError] rather than hand out one at or below it.
type Client struct {
	cfg     ClientConfig
	log     *slog.Logger
	tel     telemetry
	servers []*remote

	forming atomic.Pointer[callers]
	wake    chan struct{} // the forming batch is no longer empty
	ctx     context.Context
	cancel  context.CancelFunc
	worker  sync.WaitGroup
	closed  atomic.Bool

	leader    atomic.Int32 // index in servers of whom to ask first
	lastErr   atomic.Pointer[string]
	answered  atomic.Uint64
	requests  atomic.Uint64
	failures  atomic.Uint64
	failovers atomic.Uint64

	// Used by the worker alone.
	stream *askStream // to servers[leader]; nil if there is none
	high   Timestamp  // highest timestamp received

	hints clientHints
}

var (
	_ Oracle = (*Client)(nil)
	_ Hints  = (*Client)(nil)
)

// remote is one server.
type remote struct {
	address string
	link    atomic.Pointer[link]
}

// link is a connection to a server.
type link struct {
	conn *grpc.ClientConn
	tsopb.OracleClient
}

// service is for one request, or one stream: dial replaces it.
func (r *remote) service() tsopb.OracleClient { return r.link.Load() }

// dial makes a connection, which does no I/O yet, and closes the one before.
func (r *remote) dial(opts []grpc.DialOption) error {
	conn, err := grpc.NewClient(r.address, opts...)
	if err != nil {
		return err
	}
	if old := r.link.Swap(&link{conn, tsopb.NewOracleClient(conn)}); old != nil {
		_ = old.conn.Close() // fails only when it is closed already
	}
	return nil
}

// NewClient returns a client of the servers. It does no I/O. It fails for a
// configuration that cannot work.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("tso: ClientConfig.Addresses is empty")
	}
	if cfg.Timeout < 0 || cfg.AttemptTimeout < 0 {
		return nil, errors.New("tso: ClientConfig: a timeout is negative")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, time.Second)
	c := &Client{cfg: cfg, log: discard(cfg.Logger), wake: make(chan struct{}, 1)}
	c.hints.queue = newHintQueue()
	c.tel = newTelemetry(roleClient, cfg.TracerProvider, cfg.MeterProvider, c.log)
	c.forming.Store(newCallers())
	for _, address := range cfg.Addresses {
		if slices.ContainsFunc(c.servers, func(r *remote) bool { return r.address == address }) {
			continue
		}
		r := &remote{address: address}
		if err := r.dial(c.dialOptions()); err != nil {
			c.closeConns()
			return nil, fmt.Errorf("tso: address %q: %w", address, err)
		}
		c.servers = append(c.servers, r)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.worker.Go(c.work)
	return c, nil
}

// Timestamp returns a timestamp above every one that was received, anywhere,
// before this call. It fails when ctx ends, and when no server answered within
// the configured timeout, with [*UnavailableError]; at once with [ErrClosed]
// after Close, with [*BackwardsError], and with what servers cannot get over:
// [ErrMode], [ErrCorrupt], [ErrNotInitialized], [ErrExhausted], [ErrFormat]. A
// number may be lost, never given twice.
func (c *Client) Timestamp(ctx context.Context) (Timestamp, error) {
	if err := ctx.Err(); err != nil {
		return 0, c.expired(err)
	}
	for {
		b := c.forming.Load()
		place, ok := b.join()
		if !ok {
			if c.closed.Load() {
				return 0, ErrClosed
			}
			continue // the next one is there already
		}
		if place == 0 {
			if sc, ok := origin(ctx); ok {
				b.origin.Store(&sc)
			}
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
		ts, ended, err := b.wait(ctx, place)
		if ended {
			return 0, c.expired(ctx.Err())
		}
		return ts, err
	}
}

// expired is the error for a caller whose context ended. The last failure is
// text only: it may be a deadline of its own, and must not make a cancelled
// caller match context.DeadlineExceeded.
func (c *Client) expired(ctxErr error) error {
	if last := c.lastErr.Load(); last != nil {
		return fmt.Errorf("tso: waiting for a timestamp: %w (last error: %s)", ctxErr, *last)
	}
	return fmt.Errorf("tso: waiting for a timestamp: %w", ctxErr)
}

// Close ends the work in flight, answers everybody who waits with [ErrClosed]
// and closes the connections. Subscriptions for hints end, and hints that wait
// are sent within a tenth of a second or dropped. Closing twice is fine; the
// error is always nil.
func (c *Client) Close() error {
	c.hints.mu.Lock() // the publisher is running by now, or never will be
	c.closed.Store(true)
	c.hints.mu.Unlock()
	c.cancel()
	c.worker.Wait()
	c.closeConns()
	return nil
}

func (c *Client) closeConns() {
	for _, r := range c.servers {
		_ = r.link.Load().conn.Close()
	}
}

// Stats returns the counters.
func (c *Client) Stats() ClientStats {
	return ClientStats{
		Timestamps: c.answered.Load(),
		Requests:   c.requests.Load(),
		Failures:   c.failures.Load(),
		Failovers:  c.failovers.Load(),

		HintsSent:     c.hints.sent.Load(),
		HintsDropped:  c.hints.dropped.Load(),
		HintsReceived: c.hints.received.Load(),
		Subscriptions: int(c.hints.subscriptions.Load()),
	}
}

func (c *Client) dialOptions() []grpc.DialOption {
	creds := c.cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(c.cfg.Telemetry...)),
		grpc.WithKeepaliveParams(keepaliveParams),
		grpc.WithConnectParams(connectParams(c.cfg.AttemptTimeout)),
	}, c.cfg.DialOptions...)
}

// work sends batches, one after the other.
func (c *Client) work() {
	defer c.hangUp()
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			// Whoever comes from now on finds the seal; closed is set.
			last := c.forming.Load()
			last.seal()
			last.finish(ErrClosed)
			return
		}
		for c.ctx.Err() == nil && c.forming.Load().joined.Load() > 0 {
			// The next batch is there before this one is sealed: a caller who
			// finds the seal finds the other.
			b := c.forming.Swap(newCallers())
			n := b.seal()
			b.firsts = b.inline[:0]
			b.finish(c.fill(b, n))
		}
	}
}

// fill gets the timestamps for a batch of n, in ranges of MaxCount.
func (c *Client) fill(b *callers, n int64) (err error) {
	start := time.Now()
	var from trace.SpanContext
	if sc := b.origin.Load(); sc != nil {
		from = *sc
	}
	_, span := c.tel.request(c.ctx, "request timestamps", from, n)
	defer func() { end(span, err) }()
	for left := n; left > 0; left -= MaxCount {
		count := min(left, MaxCount)
		first, err := c.ask(count, start, func() bool { return b.abandoned(n) })
		if err != nil {
			return err
		}
		b.firsts = append(b.firsts, first)
	}
	return nil
}

// An UnavailableError says that no server answered in time. Which reasons the
// servers had is in Servers, in the order of the configuration.
type UnavailableError struct {
	Waited  time.Duration
	Servers []ServerError
}

// A ServerError is why one server did not answer.
type ServerError struct {
	Address string
	Err     error // nil if it was not asked
}

func (e *UnavailableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tso: no oracle server answered for %s", e.Waited.Round(time.Millisecond))
	for i, s := range e.Servers {
		fmt.Fprintf(&b, "%s %s: ", []string{":", ";"}[min(i, 1)], s.Address)
		if s.Err == nil {
			b.WriteString("not asked")
		} else {
			b.WriteString(strings.TrimPrefix(s.Err.Error(), "tso: "))
		}
	}
	return b.String()
}

// Is reports whether target is [ErrUnavailable].
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// A BackwardsError says that a server answered with a timestamp that is not
// above one that this client was given before. Servers of two deployments are
// configured together, or the oracle's row was restored from a backup. The
// client hands nothing out. It drops the connection to that server, and its next
// request looks for the leader again, from another server on; it goes on failing
// until the leader is above High.
type BackwardsError struct {
	Address string
	Got     Timestamp
	High    Timestamp
}

func (e *BackwardsError) Error() string {
	return fmt.Sprintf("tso: server %s went backwards: it answered %d, but %d was handed out before; stop the clients of this deployment, and check that all servers use one oracle row and that it was not restored from a backup", e.Address, e.Got, e.High)
}

// Is reports whether target is [ErrBackwards].
func (e *BackwardsError) Is(target error) bool { return target == ErrBackwards }
