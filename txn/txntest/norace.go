//go:build !race

package txntest

import "google.golang.org/grpc"

// repeat is strict.Config.Repeat.
const repeat = 5

func serialize() []grpc.ServerOption { return nil }
