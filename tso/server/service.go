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
	"github.com/percolator-bigtable/percolator/tso/internal/row"
	"github.com/percolator-bigtable/percolator/tso/internal/telemetry"
	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// service answers the requests of clients.
type service struct {
	alloc *allocator
	row   *row.Row
	tel   telemetry.Telemetry
	log   *slog.Logger
	limit *limits
	start time.Time

	warned atomic.Int64 // the last minute with a warning of a limit

	tsopb.UnimplementedOracleServer
}

// Timestamps serves one client: a range for each request, in order.
func (s *service) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	ctx := stream.Context()
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
		if err := s.pace(ctx, tso.Timestamp(req.Count)); err != nil {
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
func (s *service) pace(ctx context.Context, count tso.Timestamp) error {
	ahead, leading := s.alloc.ahead()
	if !leading {
		return nil
	}
	wait, err := s.limit.pace(clientOf(ctx), count, ahead)
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
	r.UptimeUs = time.Since(s.start).Microseconds()
	return r
}

func checkFormat(version uint32) error {
	if version != format.Version {
		err := &tso.FormatError{Where: "the request", Found: version, Want: format.Version}
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}
