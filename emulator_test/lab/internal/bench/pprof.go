package bench

import (
	"fmt"
	"os"
	"strings"

	"github.com/google/pprof/profile"
)

// The parts of a process to which CPU time is attributed.
const (
	partLibrary  = "library"
	partBigtable = "bigtable"
	partGRPC     = "grpc"
	partEmulator = "emulator"
	partBench    = "benchmark"
	partRuntime  = "runtime"
)

// partOf are the packages of the parts. Time in other packages, such as the standard
// library and the runtime's memory management, counts for their caller.
var partOf = []struct{ prefix, part string }{
	{"github.com/percolator-bigtable/percolator/txn/txntest", partBench},
	{"github.com/percolator-bigtable/percolator/txn", partLibrary},
	{"github.com/percolator-bigtable/percolator/tso", partLibrary},
	{"github.com/percolator-bigtable/percolator/emulator_test/", partBench},
	{"github.com/percolator-bigtable/percolator/cmd/", partBench},
	{"cloud.google.com/go/bigtable/bttest", partEmulator},
	{"github.com/google/btree", partEmulator},
	{"cloud.google.com/go/bigtable/apiv2/", partGRPC}, // generated messages
	{"cloud.google.com/go/bigtable.", partBigtable},
	{"cloud.google.com/go/bigtable/", partBigtable},
	{"github.com/googleapis/gax-go", partBigtable},
	{"google.golang.org/grpc", partGRPC},
	{"google.golang.org/protobuf", partGRPC},
	{"golang.org/x/net", partGRPC},
	{"internal/poll.", partGRPC},
	{"net.", partGRPC},
}

// shares reads a CPU profile and returns each part's share of its time.
func shares(file string) (map[string]float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	p, err := profile.Parse(f)
	if err != nil {
		return nil, fmt.Errorf("profile %s: %w", file, err)
	}
	by, all := map[string]float64{}, 0.0
	for _, s := range p.Sample {
		v := float64(s.Value[len(s.Value)-1]) // nanoseconds; the value before is a count
		by[partOfSample(s)] += v
		all += v
	}
	for name := range by {
		by[name] /= all
	}
	return by, nil
}

// partOfSample returns the part of the innermost function that belongs to one. Without
// such a function it is the runtime's: garbage collection and scheduling.
func partOfSample(s *profile.Sample) string {
	for _, location := range s.Location {
		for _, line := range location.Line {
			for _, known := range partOf {
				if strings.HasPrefix(line.Function.Name, known.prefix) {
					return known.part
				}
			}
		}
	}
	return partRuntime
}
