package emulator_test

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// refuse answers the matching requests as Bigtable answers a client without permission:
// nothing is applied.
func refuse(match func(txntest.Call) bool) []grpc.DialOption {
	return txntest.Intercept(func(c txntest.Call) error {
		if match(c) {
			return status.Error(codes.PermissionDenied, "injected: refused")
		}
		return nil
	})
}

// An answerHold delays the answer to the first matching read until release is closed.
// When it closes held, Bigtable has carried the read out.
type answerHold struct {
	match         func(txntest.Call) bool
	once          sync.Once
	held, release chan struct{}
}

func newAnswerHold(match func(txntest.Call) bool) *answerHold {
	return &answerHold{match: match, held: make(chan struct{}), release: make(chan struct{})}
}

func (h *answerHold) dialOption() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := streamer(ctx, desc, cc, method, opts...)
		return &heldStream{ClientStream: s, method: method, hold: h}, err
	})
}

type heldStream struct {
	grpc.ClientStream
	method string
	hold   *answerHold
	chosen bool
}

func (s *heldStream) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok && s.hold.match(txntest.Classify(s.method, msg)) {
		s.hold.once.Do(func() { s.chosen = true })
	}
	return s.ClientStream.SendMsg(m)
}

func (s *heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.chosen {
		s.chosen = false
		close(s.hold.held)
		<-s.hold.release
	}
	return err
}
