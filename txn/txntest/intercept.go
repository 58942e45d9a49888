package txntest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Intercept returns options for a connection that call see with each request before it is
// sent. If see returns an error, that is the answer, and the request is not sent. see may be
// called concurrently.
func Intercept(see func(Call) error) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if msg, ok := req.(proto.Message); ok {
				if err := see(Classify(method, msg)); err != nil {
					return err
				}
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &seenStream{s, method, see}, err
		}),
	}
}

type seenStream struct {
	grpc.ClientStream
	method string
	see    func(Call) error
}

func (s *seenStream) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok {
		if err := s.see(Classify(s.method, msg)); err != nil {
			return err
		}
	}
	return s.ClientStream.SendMsg(m)
}
