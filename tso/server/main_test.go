package server_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// These tests bring an emulator of their own, with faults in it; the Bigtable
	// client would connect to this one as well.
	_ = os.Unsetenv("BIGTABLE_EMULATOR_HOST")
	if os.Getenv(processEnv) != "" {
		os.Exit(serverProcess())
	}
	goleak.VerifyTestMain(m)
}
