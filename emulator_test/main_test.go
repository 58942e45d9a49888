package emulator_test

import (
	"os"
	"testing"
)

// TestMain lets the test binary start itself as a client process of a workload.
func TestMain(m *testing.M) {
	if spec := os.Getenv(clientEnv); spec != "" {
		os.Exit(runClientProcess(spec))
	}
	os.Exit(m.Run())
}
