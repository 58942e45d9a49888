package tso

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

const (
	// roundPause is between two rounds through the servers, growing to
	// maxRoundPause: a graceful handover takes some ten milliseconds, and a
	// process should not cost a server in trouble more than a few requests a
	// second.
	roundPause    = 5 * time.Millisecond
	maxRoundPause = 250 * time.Millisecond
)

// keepaliveParams have a connection whose other end is gone without a word
// noticed even when nobody asks.
var keepaliveParams = keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}

// connectParams have a server that was restarted found soon: gRPC's own first
// pause is a second.
func connectParams(attempt time.Duration) grpc.ConnectParams {
	return grpc.ConnectParams{
		Backoff:           grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: attempt,
	}
}

// askStream is an open stream to one server, with one request on it at a time.
type askStream struct {
	grpc.BidiStreamingClient[tsopb.TimestampsRequest, tsopb.TimestampsResponse]
	cancel context.CancelFunc
	timer  *time.Timer // cancels; stopped between requests
	req    tsopb.TimestampsRequest
	res    tsopb.TimestampsResponse
}

// errSlow is what a server that did not answer in time is recorded with.
var errSlow = errors.New("tso: no answer in time")

// ask gets count timestamps from whoever leads. It goes through the servers,
// the last leader first, until one answers, the time is up, or nobody waits.
func (c *Client) ask(count int64, abandoned func() bool) (Timestamp, error) {
	first, hint, err := c.askServer(count)
	if err == nil {
		return first, nil // without ever looking at a clock
	}
	start, pause := time.Now(), roundPause
	failed := make([]ServerError, len(c.servers))
	for i, r := range c.servers {
		failed[i].Address = r.address
	}
	asked := make([]bool, len(c.servers)) // in this round
	for attempts := 1; ; attempts++ {
		at := int(c.leader.Load())
		c.noteFailure(at, err)
		failed[at].Err, asked[at] = err, true
		waited := time.Since(start)
		switch over := !slices.Contains(asked, false); {
		case c.ctx.Err() != nil:
			return 0, ErrClosed
		case final(err):
			return 0, err
		case over && agreed(failed) != nil:
			return 0, agreed(failed)
		case waited >= c.cfg.Timeout || abandoned():
			return 0, &UnavailableError{Waited: waited, Servers: failed}
		case over:
			c.rest(min(pause/2+rand.N(pause), c.cfg.Timeout-waited))
			pause = min(2*pause, maxRoundPause)
			clear(asked)
		}
		// A hint saves the way, once per round: it may be out of date.
		next := slices.IndexFunc(c.servers, func(r *remote) bool { return r.address == hint })
		if next < 0 || asked[next] {
			for next = (at + 1) % len(c.servers); asked[next]; {
				next = (next + 1) % len(c.servers)
			}
		}
		if next != at {
			c.hangUp()
			c.leader.Store(int32(next))
			c.failovers.Add(1)
		}
		if first, hint, err = c.askServer(count); err == nil {
			c.lastErr.Store(nil)
			c.log.Info("tso: a server answers again", "address", c.servers[next].address, "after", time.Since(start), "attempts", attempts+1)
			return first, nil
		}
	}
}

func (c *Client) noteFailure(at int, err error) {
	c.failures.Add(1)
	text := c.servers[at].address + ": " + strings.TrimPrefix(err.Error(), "tso: ")
	c.lastErr.Store(&text)
}

// askServer sends one request to servers[leader] and waits for its answer. hint
// is the address of the leader as that server knows it.
func (c *Client) askServer(count int64) (first Timestamp, hint string, err error) {
	r := c.servers[c.leader.Load()]
	s := c.stream
	if s == nil {
		ctx, cancel := context.WithCancel(c.ctx)
		s = &askStream{cancel: cancel, timer: time.AfterFunc(c.cfg.AttemptTimeout, cancel)}
		s.req.FormatVersion = FormatVersion
		if s.BidiStreamingClient, err = r.service.Timestamps(ctx); err != nil {
			return 0, "", c.broken(s, err)
		}
		c.stream = s
	} else {
		s.timer.Reset(c.cfg.AttemptTimeout)
	}
	s.req.Count = uint32(count)
	// A failed Send says no more than io.EOF; what happened is for RecvMsg.
	_ = s.Send(&s.req)
	if err := s.RecvMsg(&s.res); err != nil {
		return 0, "", c.broken(s, err)
	}
	if !s.timer.Stop() {
		c.stream = nil // answered in the last moment; the stream is cancelled
	}
	if n := s.res.NotLeader; n != nil {
		return 0, n.LeaderAddress, refused(n)
	}
	first = Timestamp(s.res.First)
	last := first + Timestamp(count) - 1
	switch {
	case int64(s.res.Count) != count || first < minTimestamp || last > Max:
		return 0, "", c.broken(s, fmt.Errorf("tso: malformed answer: %d timestamps from %d, asked for %d", s.res.Count, first, count))
	case first <= c.high:
		return 0, "", &BackwardsError{Address: r.address, Got: first, High: c.high}
	}
	c.high = last
	c.answered.Add(uint64(count))
	c.requests.Add(1)
	return first, "", nil
}

// broken ends a stream and returns the error to report for it.
func (c *Client) broken(s *askStream, err error) error {
	if !s.timer.Stop() && c.ctx.Err() == nil {
		err = fmt.Errorf("%w: after %s: %w", errSlow, c.cfg.AttemptTimeout, err)
	}
	s.cancel()
	c.stream = nil
	return err
}

// hangUp ends the stream, if there is one.
func (c *Client) hangUp() {
	if c.stream != nil {
		c.stream.timer.Stop()
		c.stream.cancel()
		c.stream = nil
	}
}

func (c *Client) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
}

// A refusal is a server's answer that it does not lead.
type refusal struct {
	reason string
	is     error // the sentinel
}

func (e *refusal) Error() string { return e.reason }
func (e *refusal) Unwrap() error { return e.is }

func refused(n *tsopb.NotLeader) error {
	for sentinel, t := range troubles {
		if t == n.Trouble {
			return &refusal{n.Reason, sentinel}
		}
	}
	reason := n.Reason
	if n.LeaderAddress != "" {
		reason += "; the leader it knows is " + n.LeaderAddress
	}
	return &refusal{reason, ErrNotLeader}
}

// final reports whether asking again, or elsewhere, is pointless.
func final(err error) bool {
	if errors.Is(err, ErrBackwards) {
		return true
	}
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

// agreed returns the trouble that some server reported and none contradicts:
// the others report it too, or cannot be asked.
func agreed(failed []ServerError) error {
	var trouble error
	for _, f := range failed {
		var r *refusal
		if !errors.As(f.Err, &r) {
			continue
		}
		if errors.Is(r, ErrNotLeader) {
			return nil
		}
		trouble = f.Err
	}
	return trouble
}
