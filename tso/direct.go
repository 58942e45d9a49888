package tso

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
)

// DirectConfig configures a [Direct] oracle. The zero value is ready to use.
// Row and Family have to be the same in all processes of a deployment.
type DirectConfig struct {
	// Row is the oracle's row key in the metadata table.
	// Defaults to "oracle".
	Row string

	// Family is the oracle's column family in the metadata table.
	// Defaults to "tso".
	Family string

	// RPCTimeout bounds each single RPC. It does not bound Timestamp, which
	// retries an RPC that timed out until the caller's context ends. A long
	// timeout is bad because the whole process waits for one RPC. A timeout
	// shorter than a few seconds adds load while a tablet moves or fails over.
	// Defaults to 10 seconds.
	RPCTimeout time.Duration

	// Clock is the clock that timestamps follow. Defaults to time.Now.
	Clock func() time.Time

	// MaxStep is how far the clock may be ahead of the highest timestamp
	// before the oracle confirms the step with Bigtable's own clock, in two
	// round trips. That happens after a pause of that length, or with a wrong
	// clock. A clock that jumps ahead moves the oracle by MaxStep at most.
	// Defaults to 1 minute.
	MaxStep time.Duration

	// TracerProvider makes the spans of requests for timestamps.
	// Defaults to OpenTelemetry's global one.
	TracerProvider trace.TracerProvider

	// MeterProvider makes the metrics of the oracle.
	// Defaults to OpenTelemetry's global one.
	MeterProvider metric.MeterProvider

	// Logger receives warnings about retries and wrong clocks.
	// Defaults to no logging.
	Logger *slog.Logger
}

// DirectStats counts what a [Direct] did since it was made.
type DirectStats struct {
	Batches    uint64 // reservations that succeeded
	Timestamps uint64 // timestamps handed to callers
	Retries    uint64 // reservations that failed and were tried again
	RPCs       uint64 // Bigtable requests; the Bigtable client's own retries of reads are not seen here
}

// Direct is an oracle without a service: its state is one row of the metadata
// table, and any number of processes may use it at once. See the package
// documentation for how it works and what it costs.
//
// A Direct has no goroutine while no caller waits for a timestamp.
type Direct struct {
	log *slog.Logger
	row *row.Row
	res *reserver // used by the one running worker only
	tel telemetry.Telemetry

	worker   sync.WaitGroup // the running worker, if any
	expected int64          // callers of the batch before; the worker's

	mu      sync.Mutex
	closed  bool
	running bool   // a worker is running
	forming *batch // requests for the next reservation, not sent; nil if none
	sent    *batch // requests of the reservation in flight; nil if none
	lastErr error  // of the reservation in flight; nil after a success
	stats   DirectStats
}

var _ Oracle = (*Direct)(nil)

// NewDirect returns an oracle over the metadata table. It does no I/O: the first
// Timestamp finds out whether the table exists and the row is in direct mode.
func NewDirect(table bigtable.TableAPI, cfg DirectConfig) *Direct {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	r := row.Open(table, cfg.Row, cfg.Family, cfg.RPCTimeout)
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	tel := telemetry.New(telemetry.RoleDirect, cfg.TracerProvider, cfg.MeterProvider, log, outcomes...)
	return &Direct{log: log, row: r, tel: tel, res: &reserver{
		row:     r,
		clock:   cfg.Clock,
		maxStep: Timestamp(cmp.Or(max(cfg.MaxStep, 0), time.Minute).Microseconds()),
		log:     log,
	}}
}

// Timestamp returns a timestamp above every one that any process received
// before this call. It retries temporary errors until ctx ends, so ctx should
// have a deadline; the error then matches the context's, and its text has the
// last failure. Timestamp fails at once with [ErrClosed] after Close, with
// [*ModeError], [*CorruptError] or [ErrNotInitialized] for a row that cannot be
// used, and for requests that Bigtable refuses (no permission, an app profile
// without single-row transactions). A number may be lost, but never comes twice.
func (d *Direct) Timestamp(ctx context.Context) (Timestamp, error) {
	if err := ctx.Err(); err != nil {
		return 0, d.expired(err)
	}
	b, place, err := d.join(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		if d.leave(b) {
			return 0, d.expired(ctx.Err())
		} // else it was answered in the meantime
	}
	if b.err != nil {
		return 0, b.err
	}
	return b.first + Timestamp(place), nil
}

// Close ends the work in flight, fails all waiting callers with [ErrClosed] and
// returns when the worker has stopped. It does not close the table's client. A
// second Close does nothing; the error is always nil.
func (d *Direct) Close() error {
	d.mu.Lock()
	d.closed = true
	d.forming.finish(0, ErrClosed)
	d.sent.finish(0, ErrClosed)
	d.mu.Unlock()
	d.worker.Wait()
	return nil
}

// Stats returns the counters.
func (d *Direct) Stats() DirectStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.RPCs = d.row.RPCs()
	return s
}

// join adds the caller to the batch that forms, and starts a worker if none
// runs. It never adds to the batch in flight: since that was sent, this caller,
// or another one that it depends on, may have received a larger timestamp than
// those that the batch will get.
func (d *Direct) join(ctx context.Context) (b *batch, place int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, 0, ErrClosed
	}
	if d.forming == nil {
		d.forming = &batch{done: make(chan struct{})}
	}
	place = d.forming.add()
	if sc, ok := telemetry.Origin(ctx); ok && (!d.forming.origin.IsValid() || sc.IsSampled() && !d.forming.origin.IsSampled()) {
		d.forming.origin = sc
	}
	if !d.running {
		d.running = true
		d.worker.Go(d.work)
	}
	return d.forming, place, nil
}

// leave removes the caller from its batch and reports whether it was still in
// it. The batch continues for the other callers. When the last one leaves, its RPC
// is cancelled.
func (d *Direct) leave(b *batch) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return b.remove()
}

// expired is the error for a caller whose context ended. It has only the text of
// the last failure: that may be a deadline of its own, and must not make a
// cancelled caller's error match context.DeadlineExceeded.
func (d *Direct) expired(ctxErr error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lastErr == nil {
		return fmt.Errorf("tso: waiting for a timestamp: %w", ctxErr)
	}
	return fmt.Errorf("tso: waiting for a timestamp: %w (last error: %v)", ctxErr, d.lastErr)
}

// work serves batches, one after the other, until no caller waits.
func (d *Direct) work() {
	for d.serveNext() {
	}
}

// serveNext sends the batch that formed and answers it. It reports whether there
// was one.
func (d *Direct) serveNext() bool {
	// No caller's context: callers may leave while the batch continues.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	gather(d.waiting, d.expected)
	d.mu.Lock()
	b := d.forming
	d.forming, d.sent, d.lastErr = nil, b, nil
	if b == nil {
		d.running = false
		d.mu.Unlock()
		return false
	}
	b.cancel = cancel
	n, live := b.joined, b.live
	d.expected = live
	d.mu.Unlock()

	for failures := 1; live > 0; failures++ {
		began := time.Now()
		rctx, span := d.tel.Request(ctx, "reserve timestamps", b.origin, n)
		last, err := d.res.reserve(rctx, n)
		d.tel.Answered(span, began, n, err)
		if err == nil {
			d.tel.Lag(d.res.measure(ctx, last))
		}
		if !d.answer(b, last, n, err) {
			return true
		}
		d.log.WarnContext(ctx, "tso: reserving timestamps failed, trying again",
			"row", d.row.Key, "waiting", n, "failures", failures, "error", err)
		pause := time.NewTimer(row.Backoff(failures))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
		d.mu.Lock()
		live = b.live
		d.mu.Unlock()
	}
	return true
}

// waiting returns how many callers wait for the next reservation.
func (d *Direct) waiting() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.forming; b != nil {
		return b.live
	}
	return 0
}

// answer gives the callers of b the range of n that ends at last, or err. It
// reports whether to try again instead: the error is temporary, and callers wait.
func (d *Direct) answer(b *batch, last Timestamp, n int64, err error) (again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.stats.Batches++
		d.stats.Timestamps += uint64(b.live)
		b.finish(last-Timestamp(n)+1, nil)
	case row.Retryable(err) && b.live > 0:
		d.stats.Retries++
		d.lastErr = err
		return true
	default:
		b.finish(0, err)
	}
	return false
}
