package tso

import (
	"cmp"
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
	cancel   context.CancelFunc
	timer    *time.Timer // cancels; stopped between requests
	patience time.Duration
	req      tsopb.TimestampsRequest
	res      tsopb.TimestampsResponse
}

// errSlow is what a server that did not answer in time is recorded with.
var errSlow = errors.New("tso: no answer in time")

// ask gets count timestamps from whoever leads. It goes through the servers,
// the last leader first, until one answers, the time is up, or nobody waits.
// The time counts from start.
func (c *Client) ask(count int64, start time.Time, abandoned func() bool) (Timestamp, error) {
	patience := min(c.cfg.AttemptTimeout, max(c.cfg.Timeout-time.Since(start), 1))
	first, hint, err := c.attempt(count, patience)
	if err == nil {
		return first, nil
	}
	pause := roundPause
	failed := make([]ServerError, len(c.servers))
	for i, r := range c.servers {
		failed[i].Address = r.address
	}
	asked := make([]bool, len(c.servers)) // in this round
	for attempts := 1; ; attempts++ {
		at := int(c.leader.Load())
		c.noteFailure(at, err)
		asked[at] = true
		if failed[at].Err == nil || patience == c.cfg.AttemptTimeout || !errors.Is(err, errSlow) {
			failed[at].Err = err // an attempt that was cut short says less than one before
		}
		over, left := !slices.Contains(asked, false), c.cfg.Timeout-time.Since(start)
		var end error
		switch {
		case c.ctx.Err() != nil:
			end = ErrClosed
		case errors.Is(err, ErrBackwards):
			c.abandon(at)
			return 0, err
		case over && agreed(failed) != nil:
			end = agreed(failed)
		case left <= 0 || abandoned():
			end = &UnavailableError{Waited: time.Since(start), Servers: failed}
		case over:
			c.rest(min(pause/2+rand.N(pause), left))
			pause = min(2*pause, maxRoundPause)
			clear(asked)
			if left = c.cfg.Timeout - time.Since(start); left <= 0 {
				end = &UnavailableError{Waited: time.Since(start), Servers: failed}
			}
		}
		if end != nil {
			c.leave(at, failed)
			return 0, end
		}
		// A hint saves the way, once per round: it may be out of date.
		next := slices.IndexFunc(c.servers, func(r *remote) bool { return r.address == hint })
		if next < 0 || asked[next] {
			for next = (at + 1) % len(c.servers); asked[next]; {
				next = (next + 1) % len(c.servers)
			}
		}
		c.turnTo(next)
		patience = min(c.cfg.AttemptTimeout, left)
		if first, hint, err = c.attempt(count, patience); err == nil {
			c.lastErr.Store(nil)
			c.log.Info("tso: a server answers again", "address", c.servers[next].address, "after", time.Since(start), "attempts", attempts+1)
			return first, nil
		}
	}
}

// turnTo makes a server the one to ask.
func (c *Client) turnTo(next int) {
	if next != int(c.leader.Load()) {
		c.hangUp()
		c.leader.Store(int32(next))
		c.failovers.Add(1)
		c.tel.failedOver()
	}
}

// leave has the next request start elsewhere than at a server that will never
// answer, such as one that is no oracle.
func (c *Client) leave(at int, failed []ServerError) {
	for k := range failed {
		if next := (at + k) % len(failed); !final(failed[next].Err) {
			c.turnTo(next)
			return
		}
	}
}

// abandon has the next request look for the leader again, from the next server
// on, after servers[at] went backwards. Its connection goes too: the address may
// lead to another server by now, and the connection would not notice.
func (c *Client) abandon(at int) {
	c.hangUp()
	if err := c.servers[at].dial(c.dialOptions()); err != nil {
		c.log.Warn("tso: keeping the connection to a server that went backwards", "address", c.servers[at].address, "error", err)
	}
	c.turnTo((at + 1) % len(c.servers))
}

func (c *Client) noteFailure(at int, err error) {
	c.failures.Add(1)
	text := c.servers[at].address + ": " + strings.TrimPrefix(err.Error(), "tso: ")
	c.lastErr.Store(&text)
}

// attempt is askServer, measured.
func (c *Client) attempt(count int64, patience time.Duration) (first Timestamp, hint string, err error) {
	began := time.Now()
	first, hint, err = c.askServer(count, patience)
	c.tel.answered(nil, began, count, err)
	return first, hint, err
}

// askServer sends one request to servers[leader] and waits for its answer, as
// long as patience lasts. hint is the address of the leader as that server
// knows it.
func (c *Client) askServer(count int64, patience time.Duration) (first Timestamp, hint string, err error) {
	r := c.servers[c.leader.Load()]
	s := c.stream
	if s == nil {
		ctx, cancel := context.WithCancel(c.ctx)
		s = &askStream{cancel: cancel, patience: patience, timer: time.AfterFunc(patience, cancel)}
		s.req.FormatVersion = FormatVersion
		if s.BidiStreamingClient, err = r.service().Timestamps(ctx); err != nil {
			return 0, "", c.broken(s, err)
		}
		c.stream = s
	} else {
		s.timer.Reset(patience)
	}
	s.patience = patience
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
	switch {
	case int64(s.res.Count) != count || first < minTimestamp || first > Max-Timestamp(count)+1:
		return 0, "", c.broken(s, fmt.Errorf("tso: malformed answer: %d timestamps from %d, asked for %d", s.res.Count, first, count))
	case first <= c.high:
		return 0, "", &BackwardsError{Address: r.address, Got: first, High: c.high}
	}
	c.high = first + Timestamp(count) - 1
	c.answered.Add(uint64(count))
	c.requests.Add(1)
	return first, "", nil
}

// broken ends a stream and returns the error to report for it.
func (c *Client) broken(s *askStream, err error) error {
	if !s.timer.Stop() && c.ctx.Err() == nil {
		err = fmt.Errorf("%w: after %s: %w", errSlow, s.patience, err)
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

// final reports whether asking the same server again is pointless.
func final(err error) bool {
	switch status.Code(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

// agreed returns the trouble that some server reported and none contradicts:
// the others are in trouble too, or cannot be asked. What a server says about
// the row goes before its being no server for this client.
func agreed(failed []ServerError) error {
	var trouble, useless error
	for _, f := range failed {
		var r *refusal
		switch {
		case errors.As(f.Err, &r) && errors.Is(r, ErrNotLeader):
			return nil
		case r != nil:
			trouble = f.Err
		case final(f.Err):
			useless = f.Err
		}
	}
	return cmp.Or(trouble, useless)
}
