//go:build !race

package txntest

import "google.golang.org/grpc"

func serialize() []grpc.ServerOption { return nil }
