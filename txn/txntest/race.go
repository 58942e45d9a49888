//go:build race

package txntest

import (
	"context"

	"google.golang.org/grpc"
)

// serialize makes the emulator handle one request at a time under the race
// detector, which would report the emulator's own races otherwise: it reads a
// row's list of columns while a writer changes it.
func serialize() []grpc.ServerOption {
	// A channel and no mutex: who waits for it lets virtual time pass, which a stream
	// that holds it may need to get on.
	one := make(chan struct{}, 1)
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			one <- struct{}{}
			defer func() { <-one }()
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			l := &lockedStream{ServerStream: ss, one: one}
			defer l.unlock()
			err := handle(srv, l)
			if e := l.flush(); err == nil {
				err = e
			}
			return err
		}),
	}
}

// lockedStream holds the lock from when the request has arrived, since a client
// may open a stream and never send one, until it is answered. The answer is sent
// without it: a client may make other requests before it takes all of it.
type lockedStream struct {
	grpc.ServerStream
	one     chan struct{}
	locked  bool
	answers []any
}

func (l *lockedStream) SendMsg(m any) error {
	l.answers = append(l.answers, m)
	return nil
}

func (l *lockedStream) flush() error {
	l.unlock()
	for _, m := range l.answers {
		if err := l.ServerStream.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

func (l *lockedStream) RecvMsg(m any) error {
	err := l.ServerStream.RecvMsg(m)
	if err == nil && !l.locked {
		l.one <- struct{}{}
		l.locked = true
	}
	return err
}

func (l *lockedStream) unlock() {
	if l.locked {
		l.locked = false
		<-l.one
	}
}
