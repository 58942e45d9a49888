package tso

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/tso/internal/tsopb"
)

// hintBeat is how often a server says to a subscriber for whom there is nothing
// that it is still there; hintSilence is when a subscriber does not believe it
// any more. A server that was stopped (SIGSTOP, a machine that is gone) says
// nothing, while the next leader gets the hints.
const (
	hintBeat    = 2 * time.Second
	hintSilence = 3 * hintBeat
)

// PublishHints passes a batch of hints on to subscribers.
func (s *Server) PublishHints(_ context.Context, req *tsopb.PublishHintsRequest) (*tsopb.PublishHintsResponse, error) {
	if err := checkFormat(req.FormatVersion); err != nil {
		return nil, err
	}
	if n := len(req.Hints); n > maxHintBatch {
		return nil, status.Errorf(codes.InvalidArgument, "tso: %d hints in one request; it has to be %d at most", n, maxHintBatch)
	}
	hints := fromHintsProto(req.Hints)
	for _, h := range hints {
		if err := h.check(); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if !s.hints.publish(hints) {
		return &tsopb.PublishHintsResponse{NotLeader: s.lead.refusal(ErrNotLeader)}, nil
	}
	return &tsopb.PublishHintsResponse{}, nil
}

// SubscribeHints serves one subscriber until it leaves or the term ends. A
// subscriber that does not read blocks nothing but its own stream here; its
// queue fills, and hints go to others.
func (s *Server) SubscribeHints(req *tsopb.SubscribeHintsRequest, stream grpc.ServerStreamingServer[tsopb.SubscribeHintsResponse]) error {
	if err := checkFormat(req.FormatVersion); err != nil {
		return err
	}
	topics := make([]string, len(req.Topics))
	for i, t := range req.Topics {
		topics[i] = string(t)
	}
	topics, err := checkTopics(topics)
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	sub, err := s.hints.join(topics)
	switch {
	case errors.Is(err, ErrNotLeader):
		return stream.Send(&tsopb.SubscribeHintsResponse{NotLeader: s.lead.refusal(err)})
	case err != nil:
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	var batch []Hint // not delivered yet
	defer func() { s.hints.leave(sub, batch) }()
	beat := time.NewTicker(hintBeat)
	defer beat.Stop()
	ctx := stream.Context()
	for { // the first message says that the subscription stands
		if err := stream.Send(&tsopb.SubscribeHintsResponse{Hints: toHintsProto(batch)}); err != nil {
			return err
		}
		s.hints.delivered(len(batch))
		batch = nil
		select {
		case <-sub.queue.ready:
			batch = s.hints.take(sub)
		case <-beat.C:
		case <-sub.ended:
			return stream.Send(&tsopb.SubscribeHintsResponse{NotLeader: s.lead.refusal(ErrNotLeader)})
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func toHintsProto(hints []Hint) []*tsopb.Hint {
	out := make([]*tsopb.Hint, len(hints))
	for i, h := range hints {
		out[i] = &tsopb.Hint{Topic: []byte(h.Topic), Key: []byte(h.Key)}
	}
	return out
}

func fromHintsProto(hints []*tsopb.Hint) []Hint {
	out := make([]Hint, len(hints))
	for i, h := range hints {
		out[i] = Hint{string(h.Topic), string(h.Key)}
	}
	return out
}
