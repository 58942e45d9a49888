package emulator_test

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestMain lets the test binary start itself as a client process of a workload. Unless all tests
// run, rapid draws little, and the same each time.
func TestMain(m *testing.M) {
	if spec := os.Getenv(clientEnv); spec != "" {
		os.Exit(runClientProcess(spec))
	}
	flag.Parse()
	for name, reduced := range map[string]string{"rapid.seed": "1", "rapid.checks": "30"} {
		if f := flag.Lookup(name); long.Reduced() && f.Value.String() == f.DefValue {
			if err := f.Value.Set(reduced); err != nil {
				panic(err)
			}
		}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // otherwise Go's garbage collector takes a fifth of the time
	}
	os.Exit(m.Run())
}
