package tso

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// Timestamps serves one client: a range for each request, in order.
func (s *Server) Timestamps(stream grpc.BidiStreamingServer[tsopb.TimestampsRequest, tsopb.TimestampsResponse]) error {
	ctx := stream.Context()
	var req tsopb.TimestampsRequest // one of each for the whole stream: a busy one sees 100,000 a second
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
		if req.Count < 1 || req.Count > MaxCount {
			return status.Errorf(codes.InvalidArgument, "tso: %d timestamps asked for in one request; it has to be from 1 to %d", req.Count, MaxCount)
		}
		first, err := s.lead.allocate(ctx, Timestamp(req.Count))
		if err != nil {
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			res.First, res.Count, res.NotLeader = 0, 0, s.lead.refusal(err)
			s.lead.tel.refused(err)
		} else {
			res.First, res.Count, res.NotLeader = int64(first), req.Count, nil
		}
		if err := stream.SendMsg(&res); err != nil {
			return err
		}
	}
}

// refusal says why there are no timestamps here, and where there might be.
func (l *leadership) refusal(err error) *tsopb.NotLeader {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &tsopb.NotLeader{}
	if l.leader != l.address {
		n.LeaderAddress = l.leader
	}
	if errors.Is(err, ErrNotLeader) && l.trouble != nil {
		err = l.trouble
	}
	n.Reason = err.Error()
	for sentinel, t := range troubles {
		if errors.Is(err, sentinel) {
			n.Trouble = t
		}
	}
	return n
}

// troubles are the errors that waiting does not end.
var troubles = map[error]tsopb.Trouble{
	ErrMode:           tsopb.Trouble_TROUBLE_MODE,
	ErrCorrupt:        tsopb.Trouble_TROUBLE_CORRUPT,
	ErrNotInitialized: tsopb.Trouble_TROUBLE_NOT_INITIALIZED,
	ErrExhausted:      tsopb.Trouble_TROUBLE_EXHAUSTED,
	ErrFormat:         tsopb.Trouble_TROUBLE_FORMAT,
}

// Status says how this server is doing, leading or not.
func (s *Server) Status(_ context.Context, req *tsopb.StatusRequest) (*tsopb.StatusResponse, error) {
	if err := checkFormat(req.FormatVersion); err != nil {
		return nil, err
	}
	r := s.lead.status()
	r.FormatVersion = FormatVersion
	r.Locks = uint64(s.locks.Len())
	h := s.hints.Stats()
	r.HintsReceived, r.HintsDelivered, r.HintsDropped, r.HintsUnwanted = h.Received, h.Delivered, h.Dropped, h.Unwanted
	r.HintSubscribers = uint64(h.Subscribers)
	r.UptimeUs = time.Since(s.start).Microseconds()
	return r, nil
}

func (l *leadership) status() *tsopb.StatusResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &tsopb.StatusResponse{
		Server:         l.name,
		Address:        l.address,
		Leading:        l.leading,
		LeaderAddress:  l.leader,
		Epoch:          l.epoch,
		Limit:          int64(l.limit),
		Clock:          int64(FromTime(l.clock())),
		LeaseUs:        l.length.Microseconds(),
		Timestamps:     l.used,
		Requests:       l.asked,
		BigtableRpcs:   l.row.rpcs.Load(),
		BigtableWrites: l.row.writes.Load(),
		Rate:           l.rate,
		Terms:          l.terms,
	}
	switch {
	case l.leading:
		// What the next request would get, at least.
		r.Next = int64(max(l.next, min(Timestamp(r.Clock)-l.offset, l.ceiling)))
		r.LeaseLeftUs = max(time.Until(l.until).Microseconds(), 0)
	case l.trouble != nil:
		r.Reason = l.trouble.Error()
	case l.leader != "":
		r.Reason = "standing by"
	default:
		r.Reason = "no leader is known"
	}
	return r
}

func checkFormat(version uint32) error {
	if version != FormatVersion {
		err := &FormatError{Where: "the request", Found: version, Want: FormatVersion}
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// Acquire, Release and Holder are the lock service of the leader.

func (s *Server) Acquire(ctx context.Context, req *tsopb.AcquireRequest) (*tsopb.AcquireResponse, error) {
	if err := s.serveLocks(req.FormatVersion); err != nil {
		return nil, err
	}
	ok, by, err := s.locks.Acquire(ctx, string(req.Name), string(req.Owner), time.Duration(req.TtlUs)*time.Microsecond)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &tsopb.AcquireResponse{Acquired: ok, Owner: []byte(by.Owner), LeftUs: by.Left.Microseconds()}, nil
}

func (s *Server) Release(ctx context.Context, req *tsopb.ReleaseRequest) (*tsopb.ReleaseResponse, error) {
	if err := s.serveLocks(req.FormatVersion); err != nil {
		return nil, err
	}
	if err := s.locks.Release(ctx, string(req.Name), string(req.Owner)); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &tsopb.ReleaseResponse{}, nil
}

func (s *Server) Holder(ctx context.Context, req *tsopb.HolderRequest) (*tsopb.HolderResponse, error) {
	if err := s.serveLocks(req.FormatVersion); err != nil {
		return nil, err
	}
	by, err := s.locks.Holder(ctx, string(req.Name))
	if errors.Is(err, ErrLockUnknown) {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &tsopb.HolderResponse{Owner: []byte(by.Owner), LeftUs: by.Left.Microseconds()}, nil
}

// serveLocks fails unless this server leads: locks are in one place.
func (s *Server) serveLocks(version uint32) error {
	if err := checkFormat(version); err != nil {
		return err
	}
	if !s.lead.isLeading() {
		return status.Error(codes.Unavailable, ErrNotLeader.Error())
	}
	return nil
}

func (l *leadership) isLeading() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading {
		l.nudge()
	}
	return l.leading
}
