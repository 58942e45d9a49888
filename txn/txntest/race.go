//go:build race

package txntest

import (
	"context"

	"google.golang.org/grpc"
)

// repeat is strict.Config.Repeat: serialize would not see the copies.
const repeat = 0

// serialize makes the emulator handle one request at a time under the race
// detector. Otherwise the detector reports a race of the emulator itself, which reads
// a row's list of columns while a writer changes it.
func serialize() []grpc.ServerOption {
	// This is a channel, not a mutex: a goroutine that waits for a channel lets
	// virtual time pass, and a stream that holds it may need that to continue.
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

// lockedStream holds the lock while the request is handled. It takes the lock when
// the request has arrived, because a client may open a stream and send nothing. It
// sends the answer without the lock, because a client may make other requests before
// it has read all of the answer.
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
