package txntest

import (
	"google.golang.org/grpc"

	"github.com/percolator-bigtable/percolator/txn/internal/front"
	"github.com/percolator-bigtable/percolator/txn/internal/strict"
)

// Strict returns options for [StartEmulator]. With them the emulator refuses what Cloud
// Bigtable refuses, with its error codes: filters that are too large, empty conditional
// mutations, unknown families and so on. docs/assumptions.md lists the rules. [New] uses
// them by default.
//
// Conditional mutations fail with app profiles that route to several clusters, if you name
// such profiles.
func Strict(severalClusters ...string) []grpc.ServerOption {
	return front.Options(strict.Front(strict.Config{SeveralClusters: severalClusters}))
}

// Lenient starts the emulator of [New] without the rules of [Strict]. It implies [Embedded].
func Lenient() Option { return func(o *options) { o.lenient, o.embedded = true, true } }
