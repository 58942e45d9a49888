package txntest

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
)

// WithoutTransport makes data requests call the emulator's methods directly, without
// HTTP/2, which is most of the cost of a request. It is for simulations with very
// many requests. Interceptors of the client see the same requests and answers, and the rules
// of [Strict] hold. It implies [Embedded], and after the first request it skips the
// interceptors of [WithServerOptions].
func WithoutTransport() Option {
	return func(o *options) { o.shortcut, o.embedded = &shortcut{}, true }
}

// shortcut calls the emulator's methods for a client. It learns them from the first
// request, which uses HTTP/2.
type shortcut struct {
	server atomic.Value // of front.Server
	rules  front.Front  // of Strict
	// one allows one request at a time, because the emulator has races.
	one sync.Mutex
}

func (s *shortcut) serverOptions() []grpc.ServerOption {
	found := func(srv any) {
		if b, ok := srv.(front.Server); ok {
			s.server.CompareAndSwap(nil, b)
		}
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			found(info.Server)
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			found(srv)
			return handle(srv, ss)
		}),
	}
}

// dialOptions must be last, so that other interceptors see the requests first.
func (s *shortcut) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.unary), grpc.WithChainStreamInterceptor(s.stream)}
}

func (s *shortcut) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	server, ok := s.server.Load().(front.Server)
	if !ok {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	var call front.Call
	switch r := req.(type) {
	case *btpb.MutateRowRequest, *btpb.CheckAndMutateRowRequest, *btpb.ReadModifyWriteRowRequest:
		call = front.Call{Server: server, Request: proto.Clone(r.(proto.Message))}
	default:
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	s.one.Lock()
	defer s.one.Unlock()
	res, err := s.rules.CallUnary(ctx, &call, func(ctx context.Context) (proto.Message, error) {
		switch r := call.Request.(type) {
		case *btpb.MutateRowRequest:
			return server.MutateRow(ctx, r)
		case *btpb.CheckAndMutateRowRequest:
			return server.CheckAndMutateRow(ctx, r)
		default:
			return server.ReadModifyWriteRow(ctx, r.(*btpb.ReadModifyWriteRowRequest))
		}
	})
	if err != nil {
		return status.Convert(err).Err()
	}
	proto.Merge(reply.(proto.Message), res)
	return nil
}

func (s *shortcut) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	server, ok := s.server.Load().(front.Server)
	if ok && (method == btpb.Bigtable_ReadRows_FullMethodName || method == btpb.Bigtable_MutateRows_FullMethodName) {
		return &shortStream{ctx: ctx, to: s, call: front.Call{Server: server}}, nil
	}
	return streamer(ctx, desc, cc, method, opts...)
}

// shortStream is one request with a streamed answer. CloseSend handles the request and
// keeps the whole answer.
type shortStream struct {
	ctx  context.Context
	to   *shortcut
	call front.Call

	answer []proto.Message
	err    error
}

func (s *shortStream) SendMsg(m any) error {
	s.call.Request = proto.Clone(m.(proto.Message))
	return nil
}

func (s *shortStream) CloseSend() error {
	if err := s.ctx.Err(); err != nil {
		s.err = status.FromContextError(err).Err()
		return nil
	}
	s.to.one.Lock()
	defer s.to.one.Unlock()
	if s.err = s.to.rules.CallRequest(s.ctx, &s.call); s.err != nil {
		return nil
	}
	switch r := s.call.Request.(type) {
	case *btpb.ReadRowsRequest:
		s.err = s.call.Server.ReadRows(r, &grpc.GenericServerStream[btpb.ReadRowsRequest, btpb.ReadRowsResponse]{ServerStream: keeping{s}})
	case *btpb.MutateRowsRequest:
		s.err = s.call.Server.MutateRows(r, &grpc.GenericServerStream[btpb.MutateRowsRequest, btpb.MutateRowsResponse]{ServerStream: keeping{s}})
	default:
		s.err = errors.New("txntest: a stream without a request")
	}
	return nil
}

func (s *shortStream) RecvMsg(m any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if len(s.answer) == 0 {
		if s.err != nil {
			return status.Convert(s.err).Err()
		}
		return io.EOF
	}
	next := s.answer[0]
	s.answer = s.answer[1:]
	to := m.(proto.Message)
	if to.ProtoReflect().Descriptor() != next.ProtoReflect().Descriptor() {
		return nil // the caller discards the answer
	}
	proto.Merge(to, next)
	return nil
}

func (s *shortStream) Context() context.Context     { return s.ctx }
func (s *shortStream) Header() (metadata.MD, error) { return nil, nil }
func (s *shortStream) Trailer() metadata.MD         { return nil }

// keeping is the server's side of a shortStream.
type keeping struct{ *shortStream }

func (k keeping) SendMsg(m any) error {
	return k.to.rules.CallAnswer(k.ctx, &k.call, m.(proto.Message), func(m proto.Message) error {
		k.answer = append(k.answer, m)
		return nil
	})
}

// Context has the headers of the request: one says that the client knows reverse scans.
func (k keeping) Context() context.Context {
	headers, _ := metadata.FromOutgoingContext(k.ctx)
	return metadata.NewIncomingContext(k.ctx, headers)
}

func (k keeping) RecvMsg(any) error            { return io.EOF }
func (k keeping) SetHeader(metadata.MD) error  { return nil }
func (k keeping) SendHeader(metadata.MD) error { return nil }
func (k keeping) SetTrailer(metadata.MD)       {}
