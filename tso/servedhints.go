package tso

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/wire"
)

const (
	// hintPace is the least time between two batches. So a process that always
	// publishes costs its server a few hundred requests a second, and collects
	// the hints of the meantime in one batch.
	hintPace = 2 * time.Millisecond

	// hintFlush bounds how long Close waits for hints to be sent: a process
	// that commits once and ends should not lose its only hint.
	hintFlush = 100 * time.Millisecond

	// hintRest is the pause after servers answered that they do not know hints.
	// That lasts until they are replaced.
	hintRest = 10 * time.Second

	// hintStood is how long a subscription has to last so that the pause before
	// the next one does not grow.
	hintStood = time.Second
)

// clientHints publishes hints at a server, and subscribes for hints there. It
// uses the connections of the client, in requests and streams of its own.
type clientHints struct {
	servers *servers
	log     *slog.Logger

	publisher sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running bool // the publisher
	queue   hint.Queue

	publishing, subscribing outage

	sent, dropped, received atomic.Uint64
	subscriptions           atomic.Int32
}

func newClientHints(servers *servers, log *slog.Logger) *clientHints {
	return &clientHints{servers: servers, log: log, queue: hint.NewQueue()}
}

// seal drops all hints that are added from here on.
func (h *clientHints) seal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
}

// outage finds the first of several failures, the only one to log. Missing hints
// are no reason to warn: workers find work without them.
type outage struct{ since atomic.Bool }

func (t *outage) ends() { t.since.Store(false) }

func (t *outage) begins() bool { return !t.since.Swap(true) }

func outageReason(err error) string {
	if unknownRPC(err) {
		return "the server is of a release that does not know hints"
	}
	return strings.TrimPrefix(err.Error(), "tso: ")
}

// add queues hints, and starts the publisher.
func (h *clientHints) add(hints []Hint) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, next := range hints {
		if next := hint.Hint(next); h.closed || next.Check() != nil || !h.queue.Add(next) {
			h.dropped.Add(1)
		}
	}
	if !h.running && h.queue.Len() > 0 {
		h.running = true
		h.publisher.Go(h.publish)
	}
}

// publish sends hints that wait, until the client is closed.
func (h *clientHints) publish() {
	ctx, cancel := h.servers.open(context.Background())
	defer cancel()
	for {
		select {
		case <-h.queue.Ready:
		case <-ctx.Done():
			h.flush(nil)
			return
		}
		batch := h.take()
		if len(batch) == 0 {
			continue
		}
		pause := hintPace
		err := h.send(ctx, batch)
		switch {
		case ctx.Err() != nil && err != nil:
			h.flush(batch)
			return
		case err != nil:
			h.dropped.Add(uint64(len(batch)))
			if h.publishing.begins() {
				h.log.Info("tso: hints are not sent, work is found later", "reason", outageReason(err))
			}
			if unknownRPC(err) {
				pause = hintRest
				h.dropped.Add(uint64(len(h.drain())))
			}
		default:
			h.publishing.ends()
			h.sent.Add(uint64(len(batch)))
		}
		rest(ctx, pause)
	}
}

func (h *clientHints) take() []hint.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.Take()
}

func (h *clientHints) drain() []hint.Hint {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.Drain()
}

// send sends a batch to the server that leads, within the configured timeout.
func (h *clientHints) send(ctx context.Context, batch []hint.Hint) error {
	ctx, cancel := context.WithTimeout(ctx, h.servers.timeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := h.servers.round(ctx, func(r *remote) (string, error) {
			actx, cancel := context.WithTimeout(ctx, h.servers.attempt)
			defer cancel()
			return publishAt(actx, r, batch)
		})
		if err == nil || unknownRPC(err) || status.Code(err) == codes.InvalidArgument {
			return err
		}
		rest(ctx, row.Backoff(failures))
		if ctx.Err() != nil {
			return err
		}
	}
}

// flush makes one attempt to send the batch and the hints that wait. It runs
// after the client was closed, so within a context of its own.
func (h *clientHints) flush(batch []hint.Hint) {
	ctx, cancel := context.WithTimeout(context.Background(), hintFlush)
	defer cancel()
	for {
		if len(batch) == 0 {
			if batch = h.take(); len(batch) == 0 {
				return
			}
		}
		if _, err := publishAt(ctx, h.servers.first(), batch); err != nil {
			h.dropped.Add(uint64(len(batch) + len(h.drain())))
			return
		}
		h.sent.Add(uint64(len(batch)))
		batch = nil
	}
}

// publishAt sends a batch to one server. leader is the leader as that server
// knows it.
func publishAt(ctx context.Context, r *remote, batch []hint.Hint) (leader string, err error) {
	res, err := r.service().PublishHints(ctx, &tsopb.PublishHintsRequest{FormatVersion: FormatVersion, Hints: wire.FromHints(batch)})
	if err != nil {
		return "", err
	}
	if n := res.NotLeader; n != nil {
		return n.LeaderAddress, refused(n)
	}
	return "", nil
}

// subscribe is Client.SubscribeHints.
func (h *clientHints) subscribe(ctx context.Context, topics []string, deliver func(Hint)) error {
	topics, err := hint.CheckTopics(topics)
	if err != nil {
		return err
	}
	ctx, cancel := h.servers.open(ctx)
	defer cancel()
	for failures := 1; ; failures++ {
		var s *hintStream
		err := h.servers.round(ctx, func(r *remote) (leader string, err error) {
			s, leader, err = openHints(ctx, r, topics, h.servers.attempt)
			return leader, err
		})
		if err == nil {
			start := time.Now()
			h.subscribing.ends()
			h.subscriptions.Add(1)
			err = h.receive(ctx, s, deliver)
			h.subscriptions.Add(-1)
			if time.Since(start) >= hintStood {
				failures = 1
			}
		}
		switch {
		case h.servers.closed():
			return ErrClosed
		case ctx.Err() != nil:
			return nil
		case status.Code(err) == codes.InvalidArgument:
			return err
		}
		if h.subscribing.begins() {
			h.log.Info("tso: no hints are received, work is found later", "reason", outageReason(err))
		}
		pause := row.Backoff(failures)
		if unknownRPC(err) {
			pause = hintRest
		}
		rest(ctx, pause)
	}
}

// receive delivers hints until the stream ends.
func (h *clientHints) receive(ctx context.Context, s *hintStream, deliver func(Hint)) error {
	defer s.cancel()
	for {
		s.watch.Reset(wire.HintSilence)
		res, err := s.Recv()
		if err != nil {
			return s.broken(err)
		}
		s.watch.Stop()
		if res.NotLeader != nil {
			return refused(res.NotLeader)
		}
		for _, next := range wire.ToHints(res.Hints) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			h.received.Add(1)
			deliver(Hint(next))
		}
	}
}

// hintStream is a subscription at one server.
type hintStream struct {
	grpc.ServerStreamingClient[tsopb.SubscribeHintsResponse]
	address string
	cancel  context.CancelFunc
	watch   *time.Timer // cancels; stopped while no message is awaited
}

// openHints subscribes at one server, which has to confirm within the timeout.
func openHints(ctx context.Context, r *remote, topics []string, timeout time.Duration) (*hintStream, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &hintStream{address: r.address, cancel: cancel, watch: time.AfterFunc(timeout, cancel)}
	req := &tsopb.SubscribeHintsRequest{FormatVersion: FormatVersion}
	for _, t := range topics {
		req.Topics = append(req.Topics, []byte(t))
	}
	var err error
	if s.ServerStreamingClient, err = r.service().SubscribeHints(ctx, req); err != nil {
		return nil, "", s.broken(err)
	}
	first, err := s.Recv()
	if err != nil {
		return nil, "", s.broken(err)
	}
	if n := first.NotLeader; n != nil {
		cancel()
		return nil, n.LeaderAddress, refused(n)
	}
	return s, "", nil
}

// broken ends a stream and returns the error to report for it.
func (s *hintStream) broken(err error) error {
	if !s.watch.Stop() {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	s.cancel()
	return fmt.Errorf("tso: server %s: %w", s.address, err)
}

// unknownRPC reports whether a server is of a release without hints.
func unknownRPC(err error) bool { return status.Code(err) == codes.Unimplemented }
