package emulator_test

import (
	"flag"
	"os"
	"runtime/debug"
	"testing"

	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// TestMain lets the test binary start itself as a client process of a workload. Unless all tests
// run, what rapid draws is the same each time.
func TestMain(m *testing.M) {
	if spec := os.Getenv(clientEnv); spec != "" {
		os.Exit(runClientProcess(spec))
	}
	flag.Parse()
	if seed := flag.Lookup("rapid.seed").Value; long.Reduced() && seed.String() == "0" {
		if err := seed.Set("1"); err != nil {
			panic(err)
		}
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // otherwise Go's garbage collector takes a fifth of the time
	}
	os.Exit(m.Run())
}
