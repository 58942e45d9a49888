//go:build race

package txntest

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// serialize makes the emulator handle one request at a time under the race
// detector, which would report the emulator's own races otherwise: it reads a
// row's list of columns while a writer changes it.
func serialize() []grpc.ServerOption {
	var one sync.Mutex
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			one.Lock()
			defer one.Unlock()
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			one.Lock()
			defer one.Unlock()
			return handle(srv, ss)
		}),
	}
}
