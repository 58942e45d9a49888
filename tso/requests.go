package tso

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// requester gets ranges of timestamps from the server that leads. One goroutine
// uses it, the client's worker; the atomic fields are for all.
type requester struct {
	servers *servers
	log     *slog.Logger
	tel     telemetry.Telemetry

	stream *askStream // to servers.first(); nil if there is none
	high   Timestamp  // highest timestamp received

	lastErr    atomic.Pointer[string]
	timestamps atomic.Uint64
	answers    atomic.Uint64
	failures   atomic.Uint64
	failovers  atomic.Uint64
}

// askStream is an open stream to one server, with one request at a time.
type askStream struct {
	grpc.BidiStreamingClient[tsopb.TimestampsRequest, tsopb.TimestampsResponse]
	cancel   context.CancelFunc
	timer    *time.Timer // cancels; stopped between requests
	patience time.Duration
	req      tsopb.TimestampsRequest
	res      tsopb.TimestampsResponse
}

// expired is the error for a caller whose context ended. It has only the text of
// the last failure: that may be a deadline of its own, and must not make a
// cancelled caller's error match context.DeadlineExceeded.
func (r *requester) expired(ctxErr error) error {
	if last := r.lastErr.Load(); last != nil {
		return fmt.Errorf("tso: waiting for a timestamp: %w (last error: %s)", ctxErr, *last)
	}
	return fmt.Errorf("tso: waiting for a timestamp: %w", ctxErr)
}

// fill gets the timestamps for a batch of n, in ranges of MaxCount.
func (r *requester) fill(ctx context.Context, b *callers, n int64) (err error) {
	start := time.Now()
	var from trace.SpanContext
	if sc := b.origin.Load(); sc != nil {
		from = *sc
	}
	_, span := r.tel.Request(ctx, "request timestamps", from, n)
	defer func() { r.tel.End(span, err) }()
	for left := n; left > 0; left -= MaxCount {
		count := min(left, MaxCount)
		first, err := r.ask(ctx, count, start, func() bool { return b.abandoned(n) })
		if err != nil {
			return err
		}
		b.firsts = append(b.firsts, first)
	}
	return nil
}

// ask gets count timestamps from the server that leads. It asks the servers in
// turn, the last leader first, until one answers, the timeout ends, or no
// caller waits. The timeout counts from start.
func (r *requester) ask(ctx context.Context, count int64, start time.Time, abandoned func() bool) (Timestamp, error) {
	s := r.servers
	patience := min(s.attempt, max(s.timeout-time.Since(start), 1))
	first, hint, err := r.attempt(ctx, count, patience)
	if err == nil {
		return first, nil
	}
	pause := roundPause
	failed := s.unasked()
	asked := make([]bool, len(s.all)) // in this round
	for attempts := 1; ; attempts++ {
		at := int(s.leader.Load())
		r.noteFailure(at, err)
		asked[at] = true
		if failed[at].Err == nil || patience == s.attempt || !errors.Is(err, errSlow) {
			failed[at].Err = err // an attempt that was cut short says less than the one before
		}
		over, left := !slices.Contains(asked, false), s.timeout-time.Since(start)
		var end error
		switch {
		case ctx.Err() != nil:
			end = ErrClosed
		case errors.Is(err, ErrBackwards):
			r.abandon(at)
			return 0, err
		case over && agreed(failed) != nil:
			end = agreed(failed)
		case left <= 0 || abandoned():
			end = &UnavailableError{Waited: time.Since(start), Servers: failed}
		case over:
			rest(ctx, min(pause/2+rand.N(pause), left))
			pause = min(2*pause, maxRoundPause)
			clear(asked)
			if left = s.timeout - time.Since(start); left <= 0 {
				end = &UnavailableError{Waited: time.Since(start), Servers: failed}
			}
		}
		if end != nil {
			r.leave(at, failed)
			return 0, end
		}
		next := s.next(asked, hint)
		r.turnTo(next)
		patience = min(s.attempt, left)
		if first, hint, err = r.attempt(ctx, count, patience); err == nil {
			r.lastErr.Store(nil)
			r.log.Info("tso: a server answers again", "address", s.all[next].address, "after", time.Since(start), "attempts", attempts+1)
			return first, nil
		}
	}
}

// turnTo makes a server the one to ask first.
func (r *requester) turnTo(next int) {
	if next != int(r.servers.leader.Load()) {
		r.hangUp()
		r.servers.leader.Store(int32(next))
		r.failovers.Add(1)
		r.tel.FailedOver()
	}
}

// leave makes the next request start at another server if servers[at] will never
// answer, for example because it is no oracle.
func (r *requester) leave(at int, failed []ServerError) {
	for k := range failed {
		if next := (at + k) % len(failed); !final(failed[next].Err) {
			r.turnTo(next)
			return
		}
	}
}

// abandon makes the next request look for the leader again, starting at the next
// server, after servers[at] went backwards. It replaces the connection too: the
// address may be that of another server by now, and the connection would not
// notice.
func (r *requester) abandon(at int) {
	r.hangUp()
	s := r.servers
	if err := s.all[at].dial(s.options); err != nil {
		r.log.Warn("tso: keeping the connection to a server that went backwards", "address", s.all[at].address, "error", err)
	}
	r.turnTo((at + 1) % len(s.all))
}

func (r *requester) noteFailure(at int, err error) {
	r.failures.Add(1)
	text := r.servers.all[at].address + ": " + strings.TrimPrefix(err.Error(), "tso: ")
	r.lastErr.Store(&text)
}

// attempt is askServer, measured. It asks twice if the answer is far above the last
// one. A single wrong answer just below Max must not count as the largest timestamp:
// every later answer would be below it.
func (r *requester) attempt(ctx context.Context, count int64, patience time.Duration) (first Timestamp, hint string, err error) {
	began := time.Now()
	first, hint, err = r.askServer(ctx, count, patience)
	if err == nil && first > r.plausible() {
		high := first
		if first, hint, err = r.askServer(ctx, count, patience); err == nil && first <= high {
			address := r.servers.first().address
			err = fmt.Errorf("tso: %s answered %d and then %d; neither is used", address, high, first)
		}
	}
	if err == nil {
		r.high = first + Timestamp(count) - 1
		r.timestamps.Add(uint64(count))
		r.answers.Add(1)
	}
	r.tel.Answered(nil, began, count, err)
	return first, hint, err
}

// plausible returns the largest answer that needs no second one: a day above the
// last answer. Before the first answer it is 50 years after this machine's clock,
// which may be wrong.
func (r *requester) plausible() Timestamp {
	if r.high == 0 {
		return FromTime(time.Now().AddDate(50, 0, 0))
	}
	return r.high + Timestamp((24 * time.Hour).Microseconds())
}

// askServer sends one request to the first server and waits for its answer, as
// long as patience lasts. hint is the address of the leader as that server knows
// it.
func (r *requester) askServer(ctx context.Context, count int64, patience time.Duration) (first Timestamp, hint string, err error) {
	server := r.servers.first()
	s := r.stream
	if s == nil {
		sctx, cancel := context.WithCancel(ctx)
		s = &askStream{cancel: cancel, patience: patience, timer: time.AfterFunc(patience, cancel)}
		s.req.FormatVersion = FormatVersion
		if s.BidiStreamingClient, err = server.service().Timestamps(sctx); err != nil {
			return 0, "", r.broken(s, err)
		}
		r.stream = s
	} else {
		s.timer.Reset(patience)
	}
	s.patience = patience
	s.req.Count = uint32(count)
	// A failed Send only returns io.EOF; RecvMsg returns the reason.
	_ = s.Send(&s.req)
	if err := s.RecvMsg(&s.res); err != nil {
		return 0, "", r.broken(s, err)
	}
	if !s.timer.Stop() {
		r.stream = nil // answered in the last moment; the stream is cancelled
	}
	if n := s.res.NotLeader; n != nil {
		return 0, n.LeaderAddress, refused(n)
	}
	first = Timestamp(s.res.First)
	switch {
	case int64(s.res.Count) != count || first < Min || first > Max-Timestamp(count)+1:
		return 0, "", r.broken(s, fmt.Errorf("tso: malformed answer: %d timestamps from %d, asked for %d", s.res.Count, first, count))
	case first <= r.high:
		return first, "", &BackwardsError{Address: server.address, Got: first, High: r.high}
	}
	return first, "", nil
}

// broken ends a stream and returns the error to report for it.
func (r *requester) broken(s *askStream, err error) error {
	if !s.timer.Stop() {
		err = fmt.Errorf("%w: after %s: %w", errSlow, s.patience, err)
	}
	s.cancel()
	r.stream = nil
	return err
}

// hangUp ends the stream, if there is one.
func (r *requester) hangUp() {
	if r.stream != nil {
		r.stream.cancel() // no request is under way, so its timer is stopped
		r.stream = nil
	}
}
