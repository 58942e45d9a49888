// Package front stands before Bigtable's emulator, in the same process: it sees each request
// and each answer, and changes or refuses them. Package strict uses it to enforce the rules
// of Cloud Bigtable, and tests use it for servers with a fault.
package front

import (
	"context"
	"fmt"

	btapb "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A Server is the emulator behind a front.
type Server interface {
	btpb.BigtableServer
	btapb.BigtableTableAdminServer
}

// A Call is one request. Request may be changed before it reaches the emulator.
type Call struct {
	Server  Server
	Request proto.Message
	// Note is for the front that sees the request to recognise it when the answer comes.
	Note any
}

// A Front is what happens to requests. A nil function changes nothing.
type Front struct {
	// Unary handles a request with one answer. next passes the call's request on.
	Unary func(ctx context.Context, c *Call, next func(context.Context) (proto.Message, error)) (proto.Message, error)
	// Request sees a request with a streamed answer. An error refuses it.
	Request func(ctx context.Context, c *Call) error
	// Answer sees each message of a streamed answer, and sends it.
	Answer func(ctx context.Context, c *Call, answer proto.Message, send func(proto.Message) error) error
	// End is called after the last message of a streamed answer.
	End func(ctx context.Context, c *Call, send func(proto.Message) error) error
}

// CallUnary passes a request with one answer through a front.
func (f Front) CallUnary(ctx context.Context, c *Call, next func(context.Context) (proto.Message, error)) (proto.Message, error) {
	if f.Unary == nil {
		return next(ctx)
	}
	return f.Unary(ctx, c, next)
}

// CallRequest shows a front a request with a streamed answer.
func (f Front) CallRequest(ctx context.Context, c *Call) error {
	if f.Request == nil {
		return nil
	}
	return f.Request(ctx, c)
}

// CallAnswer passes a message of a streamed answer through a front.
func (f Front) CallAnswer(ctx context.Context, c *Call, answer proto.Message, send func(proto.Message) error) error {
	if f.Answer == nil {
		return send(answer)
	}
	return f.Answer(ctx, c, answer, send)
}

// Options returns the options for a server behind fronts. Requests pass them in order, and
// answers in the opposite order.
func Options(all ...Front) (opts []grpc.ServerOption) {
	for _, f := range all {
		opts = append(opts, grpc.ChainUnaryInterceptor(f.unary), grpc.ChainStreamInterceptor(f.stream))
	}
	return opts
}

func (f Front) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	server, ok := info.Server.(Server)
	msg, isMessage := req.(proto.Message)
	if !ok || !isMessage {
		return handle(ctx, req)
	}
	c := &Call{Server: server, Request: msg}
	return f.CallUnary(ctx, c, func(ctx context.Context) (proto.Message, error) {
		answer, err := handle(ctx, c.Request)
		if err != nil {
			return nil, err
		}
		return answer.(proto.Message), nil
	})
}

func (f Front) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	server, ok := srv.(Server)
	if !ok {
		return handle(srv, ss)
	}
	s := &stream{ServerStream: ss, front: f, call: &Call{Server: server}}
	if err := handle(srv, s); err != nil {
		return err
	}
	if f.End == nil || s.call.Request == nil {
		return nil
	}
	return f.End(ss.Context(), s.call, s.send)
}

type stream struct {
	grpc.ServerStream
	front Front
	call  *Call
}

func (s *stream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("front: message of type %T", m)
	}
	s.call.Request = msg
	return s.front.CallRequest(s.Context(), s.call)
}

func (s *stream) SendMsg(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return s.ServerStream.SendMsg(m)
	}
	return s.front.CallAnswer(s.Context(), s.call, msg, s.send)
}

func (s *stream) send(m proto.Message) error { return s.ServerStream.SendMsg(m) }
