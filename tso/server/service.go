package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/format"
	"github.com/percolator-bigtable/percolator/tso/internal/hint"
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
	"github.com/percolator-bigtable/percolator/tso/internal/wire"
)

// service answers the requests of clients.
type service struct {
	alloc *allocator
	row   *row.Row
	tel   telemetry.Telemetry
	log   *slog.Logger
	limit *limits
	hints *hint.Router
	start time.Time

	warned atomic.Int64 // the last minute with a warning of a limit

	tsopb.UnimplementedOracleServer
}

// Timestamps serves one client: a range for each request, in order.
func (s *service) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	ctx := stream.Context()
	names := verifiedNames(ctx)
	// One of each for the whole stream, which may have 100,000 requests a second.
	var req tsopb.TimestampsRequest
	var res tsopb.TimestampsResponse
	for {
		if err := stream.RecvMsg(&req); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := checkFormat(req.FormatVersion); err != nil {
			return err
		}
		if req.Count < 1 || req.Count > tso.MaxCount {
			return status.Errorf(codes.InvalidArgument, "tso: %d timestamps asked for in one request; it has to be from 1 to %d", req.Count, tso.MaxCount)
		}
		if err := s.pace(ctx, names, tso.Timestamp(req.Count)); err != nil {
			return err
		}
		first, err := s.alloc.allocate(ctx, tso.Timestamp(req.Count))
		if err != nil {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			res.First, res.Count, res.NotLeader = 0, 0, s.alloc.refusal(err)
			s.tel.Refused(err)
		} else {
			res.First, res.Count, res.NotLeader = int64(first), req.Count, nil
		}
		if err := stream.SendMsg(&res); err != nil {
			return err
		}
	}
}

// pace holds a request back if its client takes timestamps faster than the clock
// makes them, before the timestamps are generated.
func (s *service) pace(ctx context.Context, names []string, count tso.Timestamp) error {
	ahead, leading := s.alloc.ahead()
	if !leading {
		return nil
	}
	wait, err := s.limit.pace(clientOf(ctx), names, count, ahead)
	if err != nil {
		s.refused("rate")
		return err
	}
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// refused counts a request that is beyond a limit, and logs one a minute.
func (s *service) refused(limit string) {
	s.tel.Limited(limit)
	if now := time.Now().Unix() / 60; s.warned.Swap(now) != now {
		s.log.Warn("tso: a client is refused because of a limit; further ones of this minute are not logged", "limit", limit)
	}
}

// Status returns the state of this server, whether it leads or not.
func (s *service) Status(_ context.Context, req *tsopb.StatusRequest) (*tsopb.StatusResponse, error) {
	if err := checkFormat(req.FormatVersion); err != nil {
		return nil, err
	}
	return s.status(), nil
}

func (s *service) status() *tsopb.StatusResponse {
	r := s.alloc.status()
	r.FormatVersion = format.Version
	r.BigtableRpcs, r.BigtableWrites = s.row.RPCs(), s.row.Writes()
	h := s.hints.Stats()
	r.HintsReceived, r.HintsDelivered, r.HintsDropped, r.HintsUnwanted = h.Received, h.Delivered, h.Dropped, h.Unwanted
	r.HintSubscribers = uint64(h.Subscribers)
	r.UptimeUs = time.Since(s.start).Microseconds()
	return r
}

// PublishHints gives a batch of hints to subscribers.
func (s *service) PublishHints(_ context.Context, req *tsopb.PublishHintsRequest) (*tsopb.PublishHintsResponse, error) {
	if err := checkFormat(req.FormatVersion); err != nil {
		return nil, err
	}
	if n := len(req.Hints); n > hint.MaxBatch {
		return nil, status.Errorf(codes.InvalidArgument, "tso: %d hints in one request; it has to be %d at most", n, hint.MaxBatch)
	}
	hints := wire.ToHints(req.Hints)
	for _, h := range hints {
		if err := h.Check(); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if !s.hints.Publish(hints) {
		return &tsopb.PublishHintsResponse{NotLeader: s.alloc.refusal(tso.ErrNotLeader)}, nil
	}
	return &tsopb.PublishHintsResponse{}, nil
}

// SubscribeHints serves one subscriber until it leaves or the term ends. A
// subscriber that does not read blocks only its own stream: its queue fills, and
// hints go to the other subscribers.
func (s *service) SubscribeHints(req *tsopb.SubscribeHintsRequest, stream grpc.ServerStreamingServer[tsopb.SubscribeHintsResponse]) error {
	if err := checkFormat(req.FormatVersion); err != nil {
		return err
	}
	topics := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		topics[i] = string(t)
	}
	topics, err := hint.CheckTopics(topics)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	sub, err := s.hints.Join(topics)
	switch {
	case errors.Is(err, hint.ErrStopped):
		return stream.Send(&tsopb.SubscribeHintsResponse{NotLeader: s.alloc.refusal(tso.ErrNotLeader)})
	case err != nil:
		s.refused("hints")
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	var batch []hint.Hint // not delivered yet
	defer func() { s.hints.Leave(sub, batch) }()
	beat := time.NewTicker(wire.HintBeat)
	defer beat.Stop()
	ctx := stream.Context()
	for { // the first message says that the subscription stands
		if err := stream.Send(&tsopb.SubscribeHintsResponse{Hints: wire.FromHints(batch)}); err != nil {
			return err
		}
		s.hints.Delivered(len(batch))
		batch = nil
		select {
		case <-sub.Ready():
			batch = s.hints.Take(sub)
		case <-beat.C:
		case <-sub.Ended:
			return stream.Send(&tsopb.SubscribeHintsResponse{NotLeader: s.alloc.refusal(tso.ErrNotLeader)})
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func checkFormat(version uint32) error {
	if version != format.Version {
		err := &tso.FormatError{Where: "the request", Found: version, Want: format.Version}
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}
