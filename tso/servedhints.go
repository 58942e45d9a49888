package tso

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const (
	// hintPace is the least time between two batches, so that a process that
	// publishes all the time costs its server a few hundred requests a second,
	// and gathers what comes meanwhile.
	hintPace = 2 * time.Millisecond

	// hintFlush bounds how long Close waits for hints to be sent: a process
	// that commits once and ends should not lose its only one.
	hintFlush = 100 * time.Millisecond

	// hintRest is the pause after servers answered that they do not know hints:
	// until they are replaced, that is.
	hintRest = 10 * time.Second

	// hintStood is how long a subscription has to have stood for the next one
	// to start without a pause that grows.
	hintStood = time.Second
)

// clientHints is a client's part in carrying hints. It uses the connections of
// the client, in requests and streams of their own.
type clientHints struct {
	mu      sync.Mutex
	running bool // the publisher
	queue   hintQueue

	publishing, subscribing outage

	sent, dropped, received atomic.Uint64
	subscriptions           atomic.Int32
}

// outage tells the first failure of a row of them, to log that one alone. Hints
// that do not come are no reason to warn: work is found without them.
type outage struct{ since atomic.Bool }

func (t *outage) over() { t.since.Store(false) }

func (t *outage) begins() bool { return !t.since.Swap(true) }

func outageReason(err error) string {
	if unknownRPC(err) {
		return "the server is of a release that does not know hints"
	}
	return strings.TrimPrefix(err.Error(), "tso: ")
}

// PublishHints implements [Hints]. Batches are sent in the background, one at a
// time, to the server that leads. While none does they wait; they are dropped
// when the configured timeout is over, when the servers are of a release that
// does not know hints, and after Close.
func (c *Client) PublishHints(hints ...Hint) {
	h := &c.hints
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, hint := range hints {
		if c.closed.Load() || hint.check() != nil || !h.queue.add(hint) {
			h.dropped.Add(1)
		}
	}
	if !h.running && len(h.queue.order) > 0 {
		h.running = true
		c.worker.Go(c.publish)
	}
}

// publish sends what waits, until the client is closed.
func (c *Client) publish() {
	h := &c.hints
	for {
		select {
		case <-h.queue.ready:
		case <-c.ctx.Done():
			c.flush(nil)
			return
		}
		batch := c.takeHints()
		if len(batch) == 0 {
			continue
		}
		pause := hintPace
		err := c.send(batch)
		switch {
		case c.ctx.Err() != nil && err != nil:
			c.flush(batch)
			return
		case err != nil:
			h.dropped.Add(uint64(len(batch)))
			if h.publishing.begins() {
				c.log.Info("tso: hints are not sent, work is found later", "reason", outageReason(err))
			}
			if unknownRPC(err) {
				pause = hintRest
				h.mu.Lock()
				h.dropped.Add(uint64(len(h.queue.drain())))
				h.mu.Unlock()
			}
		default:
			h.publishing.over()
			h.sent.Add(uint64(len(batch)))
		}
		c.rest(pause)
	}
}

func (c *Client) takeHints() []Hint {
	c.hints.mu.Lock()
	defer c.hints.mu.Unlock()
	return c.hints.queue.take()
}

// send has a batch taken by whoever leads, within the configured timeout.
func (c *Client) send(batch []Hint) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.cfg.Timeout)
	defer cancel()
	for failures := 1; ; failures++ {
		err := c.round(ctx, func(r *remote) (string, error) {
			actx, cancel := context.WithTimeout(ctx, c.cfg.AttemptTimeout)
			defer cancel()
			return r.publish(actx, batch)
		})
		if err == nil || unknownRPC(err) || status.Code(err) == codes.InvalidArgument {
			return err
		}
		c.restWithin(ctx, backoff(failures))
		if ctx.Err() != nil {
			return err
		}
	}
}

// flush makes one attempt at the batch, and at what waits, when the client is
// being closed.
func (c *Client) flush(batch []Hint) {
	ctx, cancel := context.WithTimeout(context.Background(), hintFlush)
	defer cancel()
	for {
		if len(batch) == 0 {
			if batch = c.takeHints(); len(batch) == 0 {
				return
			}
		}
		if _, err := c.servers[c.leader.Load()].publish(ctx, batch); err != nil {
			c.hints.mu.Lock()
			c.hints.dropped.Add(uint64(len(batch) + len(c.hints.queue.drain())))
			c.hints.mu.Unlock()
			return
		}
		c.hints.sent.Add(uint64(len(batch)))
		batch = nil
	}
}

// publish asks one server. pointer is the leader as that server knows it.
func (r *remote) publish(ctx context.Context, batch []Hint) (pointer string, err error) {
	res, err := r.service().PublishHints(ctx, &tsopb.PublishHintsRequest{FormatVersion: FormatVersion, Hints: toHintsProto(batch)})
	if err != nil {
		return "", err
	}
	if n := res.NotLeader; n != nil {
		return n.LeaderAddress, refused(n)
	}
	return "", nil
}

// SubscribeHints implements [Hints]. It looks for the server that leads, and
// for the next one when that stops, as long as ctx and the client live, and
// while none does there are no hints. It fails with [ErrClosed] when the client
// is closed, and for topics beyond the limits.
func (c *Client) SubscribeHints(ctx context.Context, topics []string, deliver func(Hint)) error {
	topics, err := checkTopics(topics)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for failures := 1; ; failures++ {
		var s *hintStream
		err := c.round(ctx, func(r *remote) (pointer string, err error) {
			s, pointer, err = c.openHints(ctx, r, topics)
			return pointer, err
		})
		if err == nil {
			start := time.Now()
			c.hints.subscribing.over()
			c.hints.subscriptions.Add(1)
			err = c.receive(ctx, s, deliver)
			c.hints.subscriptions.Add(-1)
			if time.Since(start) >= hintStood {
				failures = 1
			}
		}
		switch {
		case c.closed.Load():
			return ErrClosed
		case ctx.Err() != nil:
			return nil
		case status.Code(err) == codes.InvalidArgument:
			return err
		}
		if c.hints.subscribing.begins() {
			c.log.Info("tso: no hints are received, work is found later", "reason", outageReason(err))
		}
		pause := backoff(failures)
		if unknownRPC(err) {
			pause = hintRest
		}
		c.restWithin(ctx, pause)
	}
}

// hintStream is a subscription at one server.
type hintStream struct {
	grpc.ServerStreamingClient[tsopb.SubscribeHintsResponse]
	address string
	cancel  context.CancelFunc
	watch   *time.Timer // cancels; stopped while nothing is awaited
}

// openHints subscribes at one server.
func (c *Client) openHints(ctx context.Context, r *remote, topics []string) (*hintStream, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &hintStream{address: r.address, cancel: cancel, watch: time.AfterFunc(c.cfg.AttemptTimeout, cancel)}
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
	s.watch.Stop()
	if n := first.NotLeader; n != nil {
		cancel()
		return nil, n.LeaderAddress, refused(n)
	}
	return s, "", nil
}

// receive delivers what comes, until the stream ends.
func (c *Client) receive(ctx context.Context, s *hintStream, deliver func(Hint)) error {
	defer s.cancel()
	for {
		s.watch.Reset(hintSilence)
		res, err := s.Recv()
		if err != nil {
			return s.broken(err)
		}
		s.watch.Stop()
		if res.NotLeader != nil {
			return refused(res.NotLeader)
		}
		for _, h := range fromHintsProto(res.Hints) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.hints.received.Add(1)
			deliver(h)
		}
	}
}

func (s *hintStream) broken(err error) error {
	if !s.watch.Stop() {
		err = fmt.Errorf("%w: %w", errSlow, err)
	}
	s.cancel()
	return fmt.Errorf("tso: server %s: %w", s.address, err)
}

// round asks servers, each once at most, until one takes what ask brings: first
// the one that timestamps come from, then whom a server points to, then the
// others. The error is the one of the server that gave the best reason.
func (c *Client) round(ctx context.Context, ask func(*remote) (pointer string, err error)) error {
	asked := make([]bool, len(c.servers))
	var failed []error
	for next := int(c.leader.Load()); ; {
		asked[next] = true
		pointer, err := ask(c.servers[next])
		if err == nil || ctx.Err() != nil {
			return err
		}
		failed = append(failed, err)
		next = slices.IndexFunc(c.servers, func(r *remote) bool { return r.address == pointer })
		if next < 0 || asked[next] {
			if next = slices.Index(asked, false); next < 0 {
				return best(failed)
			}
		}
	}
}

// best returns the error that says most about the leader: one that came from a
// server that did not say that another leads.
func best(failed []error) error {
	for _, err := range failed {
		if final(err) {
			return err
		}
	}
	for _, err := range failed {
		if !errors.Is(err, ErrNotLeader) {
			return err
		}
	}
	return failed[0]
}

// unknownRPC reports whether a server is of a release without hints.
func unknownRPC(err error) bool { return status.Code(err) == codes.Unimplemented }

// restWithin is rest for a context that ends no later than the client.
func (c *Client) restWithin(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
